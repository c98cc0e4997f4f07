"""Write card.md, the model card of a run: its data, accuracy, speed when served, and how to load it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpx.compare.deployed import read_served
from mpx.compare.metric import GOALS, Metric, judged_by
from mpx.compare.rules import MAX_RATE, is_figure, is_text
from mpx.compare.run import Served
from mpx.compare.served import told_apart
from mpx.compare.statistics import wilson
from mpx.compare.words import UNKNOWN, number, rate_spec
from mpx.data import LICENCES
from mpx.deploy.again import commands
from mpx.deploy.record import CARD, rows_of, tested_whole, writing
from mpx.render.table import Column, Table, escaped, in_markdown, words
from mpx.runs.folder import LAST
from mpx.settings.rules import MAX_COUNT
from mpx.whole_file import write_whole

CONFIDENCE = 0.95
VERSIONS = ("mpx", "git", "python", "torch", "cuda", "cudnn", "transformers", "torchvision")
PARTS = ("setting", "config", "metrics", "metric", "sparsity", "environment")  # of result.json
LOADING = {  # kind of exported file -> code that loads it
    "safetensors": ("from safetensors.torch import load_file", "", "weights = load_file(FILE)"),
    "pt2": ("import torch", "", "model = torch.export.load(FILE).module()  # logits = model(x), x in the format of the weights"),
    "onnx": ("import onnxruntime", "", 'session = onnxruntime.InferenceSession(FILE)  # (logits,) = session.run(["logits"], {"x": x})'),
}
Record = dict[str, Any]


def write_card(folder: Path, record: Record) -> None:
    """Write the card from the run's record and its deploy.json."""
    with writing(folder, CARD):
        write_whole(folder / CARD, card(folder, record))


def card(folder: Path, record: Record) -> str:
    """record: any JSON object with `config`. Unknown values are shown as unknown."""
    record = {name: _dict(record.get(name)) for name in PARTS}
    rows, metric = rows_of(folder), _judged(record)
    command = str(record["environment"].get("command") or "# unknown")
    parts = [
        f"# {_title(record['setting'])}",
        "\n".join(f"- {line}" for line in _facts(record, rows, metric)),
        "## Served",
        in_markdown(_served(folder, record, metric)),
        *_files(rows),
        "Measure it again:",
        _code("bash", *commands(rows, _place(folder, record["config"]))),
        "## How to load it",
        "In the folder of this card:",
        *_loading_exports(rows),
        _code("python", *_loading(record)),
        "## How it was made",
        _code("bash", command),
        f"Versions: {_versions(record['environment'])}.",
    ]
    return "\n\n".join(parts) + "\n"


def _dict(value: Any) -> Record:
    return value if isinstance(value, dict) else {}


def _place(folder: Path, config: Record) -> str:
    """The folder seen from where the training began, as its command in the card is; the whole path if it lies elsewhere now."""
    whole = folder.resolve()
    seen = Path(str(config.get("output_dir")), *whole.parts[-3:])  # study, setting, seed
    return str(seen if whole.parts[-len(seen.parts) :] == seen.parts else whole)


def _title(setting: Record) -> str:
    model, data, precision, sparsity, seed = (_text(setting.get(key)) for key in ("model", "data", "precision", "sparsity", "seed"))
    return f"{model} on {data}, {precision}-{sparsity}, seed {seed}"


def _judged(record: Record) -> Metric:
    declared, metrics = record["metric"], record["metrics"]
    known = is_text(declared.get("name")) and declared.get("goal") in (*GOALS,)  # it may be unhashable
    return judged_by(metrics, *((declared["name"], declared["goal"]) if known else (None, None)))


def _facts(record: Record, rows: list[Record], metric: Metric) -> Iterator[str]:
    data, trainer = (_dict(record["config"].get(part)) for part in ("data", "trainer"))
    licence = LICENCES.get(str(data.get("family") or data.get("name")), "unknown")
    yield f"Data: {_text(record['setting'].get('data'))}. Licence: {licence}."
    value = record["metrics"].get(metric.name)
    if metric.name == "test/accuracy":
        found = _accuracy(_figure(value, most=1.0), _samples(rows) if tested_whole(trainer) else None)
    else:
        found = number(_figure(value), metric.spec)
    yield f"{_text(metric.words.capitalize())} after training: {found}."
    yield _sparsity(record["sparsity"], on_cpu=any(row.get("device") == "cpu" for row in rows))


def _sparsity(sparsity: Record, *, on_cpu: bool) -> str:
    pattern = _text(sparsity.get("pattern"))
    if pattern == "dense":
        return "Sparsity: dense."
    checked = "verified" if sparsity.get("verified") is True else "not verified"
    found = f"Sparsity: {pattern}, density {number(_figure(sparsity.get('density')), '.3f')} over the pruned layers, {checked}."
    served = " Served dense on a CPU: 2:4 kernels need a CUDA device."
    return found + served * (on_cpu and pattern.startswith("2of4"))


def _samples(rows: list[Record]) -> int | None:
    """The size of the test set, on which every row was measured."""
    found = (row.get("test_samples") for row in rows)
    return next((count for count in found if type(count) is int and 0 < count <= MAX_COUNT), None)


def _figure(value: Any, most: float = MAX_RATE) -> float | None:
    return float(value) if is_figure(value, 0, most) else None


def _accuracy(share: float | None, samples: int | None) -> str:
    """The accuracy, with its binomial interval if the number of samples is known."""
    if share is None or not samples:
        return number(share, ".4f")
    low, high = wilson(share, samples, CONFIDENCE)
    return f"{share:.4f} ({low:.4f} to {high:.4f}, {CONFIDENCE * 100:g} % confidence, {samples:,} samples)"


def _served(folder: Path, record: Record, metric: Metric) -> Table:
    value = _figure(record["metrics"].get(metric.name))
    found, _ = read_served(folder, {} if value is None else {metric.name: value}, metric)
    heads = (metric.words, "latency p50, ms", "latency p99, ms", "samples/s", "size, MiB")
    return Table("", [*words("served as", "on"), *map(Column, heads)], [_line(one, metric) for one in told_apart([found])[0]])


def _line(one: Served, metric: Metric) -> list[str]:
    place, mark = one.place, "" if one.exclusive else " (shared)"
    by = "" if one.latency_by is None else f" {one.latency_by}"
    smallest, largest = f"{place.smallest:,}{by}", f"{place.largest:,}"
    rates = ((one.latency_ms_p50, smallest), (one.latency_ms_p99, smallest), (one.samples_per_s, largest))
    return [
        f"{one.way.words}, {one.way.backend}",
        place.device,
        number(one.metrics.get(metric.name), metric.spec) + ("" if one.accurate else " (less accurate)"),
        *(f"{number(value, rate_spec(value))} at batch {batch}{mark}" for value, batch in rates),
        number(one.weights_gib * 1024, "#.3g"),
    ]


def _files(rows: list[Record]) -> list[str]:
    """The list of exported files as one part of the card; no part if there are none."""
    names = [name for row in rows for name in _exported(row.get("exports"))]
    return ["Files:\n\n" + "\n".join(f"- {_text(name)}" for name in names)] if names else []


def _exported(exports: Any) -> list[str]:
    files = exports.values() if isinstance(exports, dict) else exports if isinstance(exports, list) else ()
    return [str(file.get("file")) if isinstance(file, dict) else str(file) for file in files]


def _loading_exports(rows: list[Record]) -> Iterator[str]:
    """Code that loads the first file of each kind."""
    files = {kind: file for row in reversed(rows) for kind, file in _dict(row.get("exports")).items()}
    for kind, lines in LOADING.items():
        if kind in files:
            name = json.dumps(str(_dict(files[kind]).get("file")))
            yield _code("python", *(line.replace("FILE", name) for line in lines))


def _loading(record: Record) -> list[str]:
    model, data = (_dict(record["config"].get(part)) for part in ("model", "data"))
    called = [
        "# For token ids x, call it with attention_mask=mask, where mask = (x != pad_id).long(). If texts begin with padding and the",
        "# network numbers its positions, as GPT-2 does, it also needs position_ids=(mask.cumsum(1) - 1).clamp(min=0)",
    ]
    averaged = _dict(record["config"].get("trainer")).get("ema_decay") is not None
    averages = ['averages = checkpoint["callbacks"]["Ema"]["averages"]  # the run was tested with these']
    if _dict(record["config"].get("sparsity")).get("pattern", "dense") != "dense":
        averages += [
            'for name, mask in checkpoint["callbacks"]["Pruning"]["masks"].items():',
            "    averages[name] = averages[name] * mask  # prunes the averages",
        ]
    averages += ["model.load_state_dict(averages, strict=False)  # a weight that two layers share has one name there"]
    return [
        "import torch",
        "",
        f'checkpoint = torch.load("{LAST.as_posix()}", weights_only=True)',
        'state = checkpoint["state_dict"]  # the names are those of the model itself',
        "model.load_state_dict(state)  # model: built as for the training",
        *(averages if averaged else []),
        *(called if (model.get("family"), data.get("kind")) == ("hf", "text") else []),
    ]


def _versions(environment: Record) -> str:
    return ", ".join(f"{name} {_text(environment[name])}" for name in VERSIONS if environment.get(name) is not None)


def _text(value: Any) -> str:
    """A value of the record, which may be anything, as safe Markdown."""
    return escaped("".join(sign for sign in str(value) if sign.isprintable())) or UNKNOWN


def _code(language: str, *lines: str) -> str:
    """A code block, whose lines cannot end it."""
    shown = ("".join(sign for sign in line if sign.isprintable()).replace("```", "") for line in lines)
    return "\n".join([f"```{language}", *shown, "```"])
