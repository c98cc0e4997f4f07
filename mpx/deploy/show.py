"""Print the tables: the speed by batch size, and the layers for which a 2:4 kernel is worth it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mpx.compare.deployed import device_of, format_of
from mpx.compare.rules import MAX_RATE, is_figure
from mpx.compare.words import UNKNOWN, digits, number, rate_spec
from mpx.deploy.kernel_times import OWN_KERNEL
from mpx.deploy.record import ROW_KEY, Row, tested_whole
from mpx.machine import GIB
from mpx.measure.exclusive import BUSY
from mpx.printing import shown
from mpx.render.table import Column, Table, console, print_table, words
from mpx.settings.deploy import QUANTISED

MAX_LAYERS = 40  # lines of the table of layers


def show(row: Row, record: dict[str, Any]) -> None:
    """row: of deploy.json. record: of the served run."""
    print_table(_speed(row))
    layers = _layers(row)
    if layers.rows:
        print_table(replace(layers, rows=layers.rows[:MAX_LAYERS]))
    for line in _notes(row, record, len(layers.rows)):
        console().print(line)


def replaced(row: Row) -> str:
    """A line about an earlier row of deploy.json, which may hold anything."""
    speed = row.get("speed")
    at = speed[-1] if isinstance(speed, list) and speed and isinstance(speed[-1], dict) else {}
    rate = at.get("serve_samples_per_s")
    found = f"{_rate(rate) if is_figure(rate, 0, MAX_RATE) else UNKNOWN} samples/s at batch {at.get('batch')}"
    return shown(f"This replaces the row of {', '.join(row[key] for key in ROW_KEY)}: backend {row.get('backend')}, {found}")


def show_all(rows: Sequence[tuple[str, Row]]) -> None:
    """One table of several rows, with the figures that matter for a choice. rows: each with its run's folder."""
    metrics = {row["metric"]["name"] for _, row in rows}
    folders = {os.path.abspath(folder) for folder, _ in rows}  # a sweep may name some by relative paths
    several, above = len(folders) > 1, os.path.relpath(os.path.commonpath(folders))
    heads = (" or ".join(sorted(metrics)).replace("/", " "), "latency p50, ms", "samples/s", "size, MiB")
    table = Table(
        "All rows of this call; latency at the smallest batch, samples/s at the largest, and what served them",
        [*words(*[f"run in {above}"] * several, "format", "weights", "backend"), *map(Column, heads)],
        [[*[os.path.relpath(folder, above)] * several, *_line(row)] for folder, row in rows],
    )
    print_table(table, framed=False)


def _line(row: Row) -> list[str]:
    first, last = ends = row["speed"][0], row["speed"][-1]
    weights, backends = (" / ".join(dict.fromkeys(map(of, ends))) for of in (_weights, lambda at: at["backend"]))
    return [
        row["format"],
        f"{row['weights']}: {weights}" if row["weights"] == "auto" else weights,
        backends,
        _value(row["metrics"], row["metric"]["name"]),
        _rate(first["latency_ms_p50"]),
        _rate(last["serve_samples_per_s"]),
        _mib(row["weights_gib"]),
    ]


def _speed(row: Row) -> Table:
    heads = ("batch", "samples/s", "latency p50", "p95", "p99", "error to FP32", "served by")
    lines = [
        [
            f"{at['batch']:,}",
            _rate(at["serve_samples_per_s"]),
            *(f"{_rate(at[f'latency_ms_{name}'])} ms" for name in ("p50", "p95", "p99")),
            number(at["relative_error"], ".1e"),
            f"{_weights(at)}, {at['backend']}",
        ]
        for at in row["speed"]
    ]
    title = f"{row['format']} on {device_of(row) or 'a CPU'}"
    return Table(title, [*map(Column, heads[:-1]), *words(heads[-1])], lines)


def _weights(at: Row) -> str:
    count = len(at["sparse_layers"])
    return f"2:4 in {count} layer{'s' if count > 1 else ''}" if count else "dense"


def _layers(row: Row) -> Table:
    """One line for all layers with the same figures, since layers of one shape are timed once. Those of a layer stand together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for at in row["speed"]:
        for layer in at["layers"]:
            alike.setdefault((f"{at['batch']:,}", *_layer(layer)), []).append(layer["name"])
    order = [layer["name"] for layer in row["layers"]]
    lines = [
        [f"{first} and {len(more)} more" if more else first, *cells]
        for cells, (first, *more) in sorted(alike.items(), key=lambda line: order.index(line[1][0]))
    ]
    heads = [*words("layer"), Column("batch"), *words("weight"), *map(Column, ("rows", "own ms", f"{row['format']} ms", "2:4 ms"))]
    title = "Is it worth it? One call of each layer in a CUDA graph, by its own kernel and by others"
    title += "; 8 bits without the rounding of activations" * (row["format"] in QUANTISED)
    return Table(title, [*heads, *words("served by")], lines)


def _layer(layer: Row) -> list[str]:
    times = {"own": [], "dense": [], "2:4": []}
    for name, ms in layer["ms"].items():
        times["own" if name == OWN_KERNEL else "2:4" if "2:4" in name else "dense"].append(ms)
    fastest = (f"{min(found):.4f}" if found else UNKNOWN for found in times.values())
    return ["×".join(map(str, layer["shape"])), f"{layer['rows']:,}", *fastest, layer["served"]]


def _notes(row: Row, record: dict[str, Any], measured: int) -> list[str]:
    """The lines below the tables. measured: lines of the table of layers."""
    lines = [*_on_accuracy(row, record), *_on_kernels(row)]
    if measured > MAX_LAYERS:
        lines.append(f"The table shows {MAX_LAYERS} of {measured} lines; deploy.json has all.")
    if (tuned := row["finetune"]) is not None:
        lines.append(_tuning(tuned, row["metric"]["name"].replace("test/", "val/")))
    lines += [f"chosen at batch {at['batch']:,} by samples/s: {_rates(at['candidates'])}" for at in row["speed"] if at["candidates"]]
    lines.append(f"weights {_size(row['weights_gib'])}, peak memory {_memory(row['memory'])}")
    lines += [_export(file) for file in row["exports"].values()]
    return [*lines, *_refused(row["speed"]), *_on_other_work(row)]


def _on_accuracy(row: Row, record: dict[str, Any]) -> Iterator[str]:
    """The accuracy as served, and why it may differ from that after training."""
    trained, name = record.get("metrics", {}), row["metric"]["name"]
    after = f", {_value(trained, name)} after training" if name in trained else ""
    yield f"{name.replace('/', ' ')} {_value(row['metrics'], name)} as served{after}"
    if (tta := record["config"]["data"].get("tta", "none")) != "none":
        yield f"The training's test averaged several views of each image (data.tta={tta}); a served model sees one."
    if after and not tested_whole(trainer := record["config"]["trainer"]):
        limit = trainer.get("limit_test_batches")
        yield f"The training's test took a part of the test set (trainer.limit_test_batches={limit}); a served model takes all."
    if norms := row.get("depends_on_batch"):
        size = row["speed"][-1]["batch"]
        yield f"{norms[0]} has no running statistics: each sample's result depends on the others of its batch, here of {size:,}."


def _on_kernels(row: Row) -> Iterator[str]:
    """Where layers lack 2:4 kernels or 8 bits, or the model as a whole is faster without them."""
    two = [at for at in row["speed"] if any("2:4" in name for layer in at["layers"] for name in layer["ms"])]
    if row["weights"] != "dense" and row["layers"] and not two:
        first = row["layers"][0]
        yield f"No layer can be served with a 2:4 kernel. {first['name']}: {first['reason']}"
    elif row["weights"] == "auto" and (dense := [at for at in two if not at["sparse_layers"]]):
        yield f"The model as a whole is fastest dense at batch {_batches(dense)}."
    if (served_in := format_of(row)) != row["format"]:
        yield f"No layer multiplies {row['format'].upper()}: the model is served in {served_in.upper()}."
    if row["quantised_layers"]:
        yield f"layers that multiply {row['format'].upper()}: {len(row['quantised_layers'])}"


def _on_other_work(row: Row) -> Iterator[str]:
    """Whether other work on the machine made the speed too low."""
    if row["exclusive"] is False:
        yield f"Not alone on the device ({row['exclusive_reason']}): the speed is too low."
    elif row["exclusive"] is None and row["device"] != "cpu":
        yield f"It is unknown whether others used the device ({row['exclusive_reason']}): the speed may be too low."
    if row["device"] == "cpu" and row["cpu_busy"] is not None and row["cpu_busy"] > BUSY:
        yield f"Other work kept {row['cpu_busy']:.0%} of the CPU's cores busy when this began: the speed is too low."


def _rates(candidates: dict[str, float]) -> str:
    return "; ".join(f"{name} {_rate(rate)}" for name, rate in sorted(candidates.items(), key=lambda pair: -pair[1]))


def _refused(speed: list[Row]) -> list[str]:
    where: dict[tuple[str, str], list[Row]] = {}
    for at in speed:
        for candidate in at["refused"].items():
            where.setdefault(candidate, []).append(at)
    return [f"not taken at batch {_batches(entries)}: {name} ({reason})" for (name, reason), entries in where.items()]


def _batches(entries: Iterable[Row]) -> str:
    """The batch sizes of entries of `speed`."""
    return ", ".join(f"{at['batch']:,}" for at in entries)


def _value(metrics: Row, name: str) -> str:
    """Errors of a regression may have any scale."""
    return number(metrics[name], "#.4g" if name.endswith(("mse", "mae")) else ".4f")


def _export(file: Row) -> str:
    metrics = file.get("metrics", {})
    found = [f"{name.replace('/', ' ')} {_value(metrics, name)}" for name in metrics if name != "test/loss"]
    if "relative_error" in file:
        found.append(f"error to FP32 {number(file['relative_error'], '.1e')}")
    return ", ".join([f"{file['file']} {_size(file['bytes'] / GIB)}", *found])


def _tuning(tuned: Row, name: str) -> str:
    changes = (f"{key.replace('/', ' ')} {_value(tuned['before'], key)} → {_value(tuned['after'], key)}" for key in (name, "val/loss"))
    verdict = "served so" if tuned["kept"] else "no better, so the model is served without it"
    return f"fine-tuned with 8 bits for {tuned['epochs']:g} epoch{'s' * (tuned['epochs'] != 1)}: {', '.join(changes)}; {verdict}"


def _rate(value: float) -> str:
    return number(value, rate_spec(value))


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{_mib(gib)} MiB"


def _mib(gib: float) -> str:
    """A small file has more decimals, since 0.00 would be none."""
    return number(gib * 1024, digits(gib * 1024, 2))


def _memory(memory: dict[str, Any]) -> str:
    on_device = memory["peak_allocated_gib"]
    return f"{_size(memory['peak_rss_gib'])} of RAM" if on_device is None else _size(on_device)
