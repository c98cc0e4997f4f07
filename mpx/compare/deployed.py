"""Read a run's deploy.json. It is not trusted: a row that mpx cannot have written is left out, with the reason."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mpx.compare.json_file import DAMAGED, in_short, read_json
from mpx.compare.metric import METRICS, Metric
from mpx.compare.rules import MAX_RATE, MIN_RATE, is_figure, is_text, metric_fits
from mpx.compare.run import Served, ServingPlace, Way
from mpx.record.result import HOST, mpx_of
from mpx.runs.folder import DEPLOYED
from mpx.settings.deploy import DEPLOY, FORMATS, QUANTISED
from mpx.settings.rules import MAX_COUNT

SERVED_WITHIN = 0.005  # allowed loss of accuracy, or relative loss of perplexity, against the run after training
MAX_DEVICE_NAME = 200  # characters of a device's name
FIGURES = ("latency_ms_p50", "latency_ms_p99", "samples_per_s", "weights_gib")  # of Served


def read_served(folder: Path, trained: Mapping[str, float], judged: Metric) -> tuple[tuple[Served, ...], list[str]]:
    """(the rows of the folder's deploy.json, why others are left out). trained: the run's own metrics. judged: the one it is judged by."""
    if not (folder / DEPLOYED).is_file():
        return (), []
    try:
        rows = read_json(folder / DEPLOYED)["rows"]
        if not isinstance(rows, list):
            raise ValueError("its rows are not a list")
    except OSError as error:
        return (), [f"{DEPLOYED} cannot be read: {error.strerror}"]
    except DAMAGED as error:
        return (), [f"{DEPLOYED} was not written by mpx, or is damaged ({in_short(error)})"]
    found, aside = [], []
    for number, row in enumerate(rows, start=1):
        try:
            served = _served(row, {*METRICS, judged.name})
            found.append(replace(served, accurate=_as_accurate(served.metrics, trained, judged)))
        except DAMAGED as error:
            aside.append(f"{DEPLOYED}, row {number}, was not written by mpx ({in_short(error)})")
    return tuple(found), aside


def _served(row: dict[str, Any], metrics: Iterable[str]) -> Served:
    """The row with these metrics; the caller sets `accurate`. Raises one of DAMAGED."""
    speed = sorted(row["speed"], key=lambda at: at["batch"])
    smallest, largest = speed[0], speed[-1]
    if not isinstance(row["sparse_layers"], list):
        raise TypeError("sparse_layers is not a list")
    tuned = (row.get("finetune") or {}).get("kept") is True
    way = Way(format_of(row), bool(row["sparse_layers"]), row["backend"], tuned, f"format={row['format']} weights={row['weights']}")
    served = Served(
        place=ServingPlace(device_of(row), smallest["batch"], largest["batch"], _host(row["environment"])),
        way=way,
        metrics={name: value for name in sorted(metrics) if (value := row["metrics"].get(name)) is not None},
        latency_ms_p50=smallest["latency_ms_p50"],
        latency_ms_p99=smallest["latency_ms_p99"],
        samples_per_s=largest["serve_samples_per_s"],
        weights_gib=row["weights_gib"],
        exclusive=row["exclusive"],
        accurate=False,
        latency_by=_latency_by(smallest, way),
    )
    if (found := wrong(served)) is not None:
        raise ValueError(f"{found[0]} is {found[1]!r}")
    return served


def _latency_by(at: Mapping[str, Any], way: Way) -> str | None:
    """at: the entry of the smallest batch."""
    backend, layers = at["backend"], at["sparse_layers"]
    if not isinstance(layers, list) or not DEPLOY["backend"].fits(backend):
        raise ValueError(f"batch {at['batch']!r} is served by {backend!r}")
    kind = "" if bool(layers) == way.sparse else "2:4 " if layers else "dense "
    return f"{kind}by {backend}" if kind or backend != way.backend else None


def wrong(served: Served) -> tuple[str, Any] | None:
    """(field, value) of the first impossible value; None if there is none."""
    place, way = served.place, served.way
    texts = {"host": place.host, "asked": way.asked, "latency_by": served.latency_by}
    checks: list[tuple[str, Any, Callable[[Any], bool]]] = [
        ("device", place.device, lambda name: isinstance(name, str) and 0 < len(name) <= MAX_DEVICE_NAME and name.isprintable()),
        ("batch", place.smallest, lambda size: type(size) is int and 0 < size <= MAX_COUNT),
        ("batch", place.largest, lambda size: type(size) is int and place.smallest <= size <= MAX_COUNT),
        ("format", way.format, lambda name: name in FORMATS),
        ("backend", way.backend, DEPLOY["backend"].fits),
        *((name, value, partial(metric_fits, name)) for name, value in served.metrics.items()),
        *((name, getattr(served, name), partial(is_figure, least=MIN_RATE, most=MAX_RATE)) for name in FIGURES),
        *((name, value, lambda text: text is None or is_text(text)) for name, value in texts.items()),
        ("exclusive", served.exclusive, lambda alone: alone is None or isinstance(alone, bool)),
    ]
    return next(((name, value) for name, value, fits in checks if not fits(value)), None)


def format_of(row: Mapping[str, Any]) -> str:
    """The format in which a row of deploy.json was served: its own, or that of all layers if none was faster in 8 bits."""
    if row["format"] in QUANTISED and not row["quantised_layers"]:
        return "fp32" if row["device"] == "cpu" else "bf16"
    return row["format"]


def device_of(row: Mapping[str, Any]) -> str | None:
    """The device on which a row of deploy.json, or mpx.bench, was measured."""
    environment = row["environment"]
    return cpu(environment) if row["device"] == "cpu" else environment["device"][0]


def _host(environment: Mapping[str, Any]) -> str | None:
    known = {key: environment.get(key) for key in HOST} | {"mpx": mpx_of(environment), "host": environment.get("host")}
    return ", ".join(f"{key} {value}" for key, value in known.items() if value) or None


def cpu(environment: Mapping[str, Any]) -> str | None:
    """The CPU with its number of threads, since its speed depends on it."""
    name, threads = environment.get("cpu"), environment.get("threads")
    return f"{name}, {threads} thread{'' if threads == 1 else 's'}" if name and threads else name


def _as_accurate(served: Mapping[str, float], trained: Mapping[str, float], judged: Metric) -> bool:
    name = judged.name
    if name not in trained or name not in served:
        return False
    if judged.relative:
        return served[name] <= trained[name] + SERVED_WITHIN * abs(trained[name])
    return served[name] >= trained[name] - SERVED_WITHIN
