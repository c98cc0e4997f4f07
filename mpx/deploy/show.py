"""What the terminal shows of what was served: tables, notes and a verdict; and card.md, the model card of a
run.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpx.compare.collect import run_of
from mpx.compare.groups import labels, shared_changes, short
from mpx.compare.served import SERVED_WITHIN, device_of, format_of
from mpx.data import LICENCES
from mpx.deploy.record import Row, rows_of
from mpx.render.table import Column, Table, console, escaped, in_markdown, print_table, words
from mpx.system.printing import digits, number, rate, signed

MAX_LAYERS = 40  # lines of the table of layers
VERSIONS = ("mpx", "git", "python", "torch", "cuda", "cudnn", "transformers", "torchvision")
CARD = """\
# {title}

- Data: {data}. Licence: {licence}.
- {metric} after training: {value}. The test set has {samples:,} samples.
- {sparsity}

## Served

{tables}

Measure it again:

```bash
{commands}
```

## How to load it

{loading}

## How it was made

```bash
{command}
```

Versions: {versions}.
"""
LOADING = {  # kind of exported file -> code that loads it
    "safetensors": "from safetensors.torch import load_file\n\nweights = load_file(FILE)",
    "pt2": "import torch\n\nmodel = torch.export.load(FILE).module()  # logits = model(x), x in the format "
    "of the weights",
    "onnx": "import onnxruntime\n\nsession = onnxruntime.InferenceSession(FILE)\n"
    '# (logits,) = session.run(["logits"], {"x": x})',
}


def show(row: Row, record: dict[str, Any]) -> None:
    """row: of deploy.json. record: of the served run."""
    for table in (*tables([row]), *_layers(row)):
        print_table(table)
    for line in _notes(row, record):
        console().print(line)


def show_all(served: Sequence[tuple[Path, dict[str, Any], Row]]) -> None:
    """One table of several rows, and a verdict if they are of one run. served: folder and record of the
    run, and the row.
    """
    rows, records = [row for _, _, row in served], {folder: record for folder, record, _ in served}
    names = run_names(records) if len(records) > 1 else {}
    for table in tables(rows, [names[folder] for folder, _, _ in served] if names else []):
        print_table(table, framed=False)
    if not names:
        for line in verdict(rows):
            console().print(line)


def run_names(records: dict[Path, dict[str, Any]]) -> dict[Path, str]:
    """Folder -> the setting as mpx.compare names it, such as `amp_bf16-dense`; with model and data, and the
    name of the folder, where those differ.
    """
    runs = {folder: run_of(record, str(folder)) for folder, record in records.items()}
    labelled, shared = labels(runs.values()), shared_changes(runs.values())
    pairs, seeds = {(run.model, run.data) for run in runs.values()}, {folder.name for folder in runs}
    return {
        folder: " ".join(
            [f"{run.model} on {run.data}"] * (len(pairs) > 1)
            + [labelled.get(run.setting, short(run, shared))]
            + [folder.name] * (len(seeds) > 1)
        )
        for folder, run in runs.items()
    }


def tables(rows: Sequence[Row], runs: Sequence[str] = ()) -> list[Table]:
    """For each device a line for each way and batch size. runs: names of the rows' runs, if there are
    several.
    """
    names = " or ".join(dict.fromkeys(row["metric"]["name"] for row in rows)).replace("/", " ")
    heads = ("batch", names, "samples/s", "p50, ms", "p99, ms", "error to FP32", "MiB")
    columns = [*words(*["run"] * bool(runs), "format", "weights", "by"), *map(Column, heads)]
    lines: dict[str, list[list[str]]] = defaultdict(list)
    for i, row in enumerate(rows):
        title = f"served on {device_of(row) or 'a CPU'}"
        lines[title] += [[*runs[i : i + 1], *_line(row, at)] for at in row["speed"]]
    return [Table(title, columns, found) for title, found in lines.items()]


def _line(row: Row, at: Row) -> list[str]:
    shared = ""
    if row["exclusive"] is False:
        shared = f" (shared, {row['cpu_used_by_others']:.0%})" if row["device"] == "cpu" else " (shared)"
    return [
        format_of(row),
        f"2:4 in {len(at['sparse_layers'])}" if at["sparse_layers"] else "dense",
        at["backend"],
        f"{at['batch']:,}",
        _value(row["metrics"], row["metric"]["name"]),
        rate(at["serve_samples_per_s"]) + shared,
        *(rate(at[f"latency_ms_{name}"]) for name in ("p50", "p99")),
        number(at["relative_error"], ".1e"),
        _mib(row["weights_gib"]),
    ]


def verdict(rows: Sequence[Row]) -> list[str]:
    """rows: of deploy.json, of one run and device, in the order in which they were asked for. What is served
    in FP32 is the reference, or else the first row. Empty if all are served alike.
    """
    reference = next((row for row in rows if format_of(row) == "fp32" and not row["sparse_layers"]), rows[0])
    others = [row for row in rows if _way(row) != _way(reference)]
    if not others:
        return []
    if (unsure := next((row for row in rows if row["exclusive"] is not True), None)) is not None:
        return [f"No verdict, since {unsure['exclusive_reason']} while {_way(unsure)} was measured."]
    accurate = [row for row in others if _loss(row, reference) <= SERVED_WITHIN]
    faster = [row for row in accurate if _speed(row) > _speed(reference)]
    best = max(faster or others, key=_speed)
    no_loss = f"at no loss of {_metric(reference)}"
    if faster:
        times = _speed(best) / _speed(reference)
        first = f"{_way(best)} answers {times:#.3g} × as fast as {_way(reference)} {no_loss}."
    else:
        first = f"No other way answers faster than {_way(reference)} {no_loss}."
    return [first, f"{_way(best)}: {_evidence(best, reference)}."]


def _way(row: Row) -> str:
    return format_of(row).upper() + (" with 2:4 kernels" if row["sparse_layers"] else "")


def _speed(row: Row) -> float:
    return row["serve_samples_per_s"]


def _metric(row: Row) -> str:
    return row["metric"]["name"].removeprefix("test/")


def _loss(row: Row, reference: Row) -> float:
    """Of a share such as the accuracy, the difference; of an error, the relative one."""
    name = row["metric"]["name"]
    value, expected = row["metrics"].get(name), reference["metrics"].get(name)
    if value is None or expected is None:
        return math.inf
    return expected - value if row["metric"]["goal"] == "max" else (value - expected) / abs(expected)


def _evidence(row: Row, reference: Row) -> str:
    name, share, both = _metric(row), row["metric"]["goal"] == "max", (row, reference)
    factor, spec, unit = (100, ".1f", " %") if share else (1, "#.4g", "")
    values = [one["metrics"].get(row["metric"]["name"]) for one in both]
    value, expected = (number(value and factor * value, spec, unit) for value in values)
    change = f", difference {signed(-100 * _loss(row, reference), '.1f')} points" if share else ""
    margin = f"{100 * SERVED_WITHIN:g} {'points' if share else '%'}"
    rates = " against ".join(rate(_speed(one)) for one in both)
    at = row["speed"][-1]["batch"]
    return f"{name} {value} against {expected}{change}; margin {margin}; {rates} samples/s at batch {at:,}"


def _layers(row: Row) -> Iterator[Table]:
    """A table of the layers for which other kernels were timed. Those of one shape have the same figures, and
    share a line.
    """
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for layer in row["layers"]:
        if layer["ms"]:
            ms = ", ".join(
                f"{kernel} {time:.4f}"
                for kernel, time in sorted(layer["ms"].items(), key=lambda pair: pair[1])
            )
            alike["×".join(map(str, layer["shape"])), f"{layer['rows']:,}", ms, layer["served"]].append(
                layer["name"]
            )
    title = (
        "Is it worth it? ms of one call of each layer in a CUDA graph; 8 bits without the rounding of "
        "activations"
    )
    columns = [
        *words("layer"),
        Column("layers"),
        *words("weight"),
        Column("rows"),
        *words("ms by kernel", "served by"),
    ]
    lines = [[names[0], str(len(names)), *cells] for cells, names in alike.items()]
    if lines:
        yield Table(title, columns, lines[:MAX_LAYERS])


def _notes(row: Row, record: dict[str, Any]) -> Iterator[str]:
    """The lines below the tables."""
    trained, name = record.get("metrics", {}), row["metric"]["name"]
    after = f", {_value(trained, name)} after training" if name in trained else ""
    yield f"{name.replace('/', ' ')} {_value(row['metrics'], name)} as served{after}"
    if (served_in := format_of(row)) != row["format"]:
        yield f"No layer multiplies {row['format'].upper()}: the model is served in {served_in.upper()}."
    if row["quantised_layers"]:
        yield f"layers that multiply {row['format'].upper()}: {len(row['quantised_layers'])}"
    pruned = "2of4" in (record.get("sparsity") or {"pattern": "2of4"})["pattern"]
    if row["weights"] == "auto" and not row["sparse_layers"] and row["layers"] and pruned:
        reason = next(
            (f"{layer['name']}: {layer['reason']}" for layer in row["layers"] if layer["reason"]),
            "it is faster dense",
        )
        yield f"No layer is served with a 2:4 kernel ({reason})."
    for at in row["speed"]:
        if at["candidates"]:
            rates = sorted(at["candidates"].items(), key=lambda pair: -pair[1])
            yield (
                f"measured at batch {at['batch']:,}, samples/s: "
                f"{'; '.join(f'{way} {rate(per_s)}' for way, per_s in rates)}"
            )
        for way, reason in at["refused"].items():
            yield f"not possible at batch {at['batch']:,}: {way} ({reason})"
    for file, why in row["exports_refused"].items():
        yield f"not exported: {file} ({why})"
    yield f"weights {_mib(row['weights_gib'])} MiB, peak memory {_memory(row['memory'])}"
    if row["exclusive"] is False:
        yield f"Not alone on the device ({row['exclusive_reason']}): the speed is too low."
    elif row["exclusive"] is None:
        yield (
            f"It is unknown whether others used the device ({row['exclusive_reason']}): the speed may be "
            "too low."
        )


def card(folder: Path, record: dict[str, Any]) -> str:
    """The model card, from the run's record and its deploy.json."""
    rows, config, setting, about = rows_of(folder), record["config"], record["setting"], record["environment"]
    data, metric = config["data"], rows[-1]["metric"]["name"]
    commands = dict.fromkeys(str(row["environment"].get("command")) for row in rows)
    parts = {
        "title": escaped(
            f"{setting['model']} on {setting['data']}, {setting['precision']}-{setting['sparsity']}, seed "
            f"{setting['seed']}"
        ),
        "data": escaped(setting["data"]),
        "licence": LICENCES.get(str(data.get("family") or data.get("name")), "unknown"),
        "metric": escaped(metric.replace("/", " ")),
        "value": _value(record["metrics"], metric),
        "samples": rows[-1]["test_samples"],
        "sparsity": _sparsity(
            record.get("sparsity") or {"pattern": "dense"}, any(row["device"] == "cpu" for row in rows)
        ),
        "tables": "\n\n".join(f"{escaped(table.title)}:\n\n{in_markdown(table)}" for table in tables(rows)),
        "commands": "\n".join(commands),
        "loading": _loading(rows),
        "command": about.get("command") or "# unknown",
        "versions": ", ".join(
            f"{name} {escaped(str(about[name]))}" for name in VERSIONS if about.get(name) is not None
        ),
    }
    return CARD.format(**parts)


def _sparsity(sparsity: dict[str, Any], on_cpu: bool) -> str:
    if sparsity["pattern"] == "dense":
        return "Sparsity: dense."
    verified = "verified" if sparsity.get("verified") is True else "not verified"
    density = number(sparsity.get("density"), ".3f")
    no_kernels = on_cpu and "2of4" in sparsity["pattern"]
    served = " Served dense on a CPU: 2:4 kernels need a CUDA device." if no_kernels else ""
    return f"Sparsity: {sparsity['pattern']}, density {density} over the pruned layers, {verified}.{served}"


def _loading(rows: Sequence[Row]) -> str:
    files = {kind: file["file"] for row in rows for kind, file in row.get("exports", {}).items()}
    if not files:
        return "`export=safetensors`, `pt2` or `onnx` of mpx.deploy writes a file that loads without mpx."
    code = "\n\n".join(LOADING[kind].replace("FILE", json.dumps(file)) for kind, file in files.items())
    return f"In the folder of this card:\n\n```python\n{code}\n```"


def _value(metrics: Row, name: str) -> str:
    """Errors of a regression may have any scale."""
    return number(metrics.get(name), "#.4g" if name.endswith(("mse", "mae")) else ".4f")


def _mib(gib: float) -> str:
    """A small file has more decimals, since 0.00 would be none."""
    return number(gib * 1024, digits(gib * 1024, 2))


def _memory(memory: dict[str, Any]) -> str:
    on_device = memory["peak_allocated_gib"]
    gib, kind = (memory["peak_rss_gib"], " of RAM") if on_device is None else (on_device, "")
    return f"{_mib(gib)} MiB{kind}"
