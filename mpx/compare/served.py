"""How a run was served: read its deploy.json, aggregate over seeds, choose the device and batch size for the
comparison.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mpx.compare.comparison import Estimate, Group, Row, estimate
from mpx.compare.run import Run, Served, ServingPlace, Way
from mpx.runs.folder import DEPLOYED
from mpx.runs.result import HOST, METRICS, Metric, mpx_of
from mpx.settings.deploy import FORMATS, QUANTISED

# allowed loss of accuracy, or relative loss of perplexity, against the run after training
SERVED_WITHIN = 0.005
# Raised while reading a file of another structure.
UNREADABLE = (AttributeError, LookupError, TypeError, ValueError, OSError, RecursionError)
Spot = tuple[str, int, str | None]  # device, samples per call, and host


def read_served(
    folder: Path, trained: Mapping[str, float], judged: Metric
) -> tuple[tuple[Served, ...], list[str]]:
    """(the rows of the folder's deploy.json, why they are left out). trained: the run's metrics. judged:
    what it is judged by.
    """
    if not (folder / DEPLOYED).is_file():
        return (), []
    try:
        rows = json.loads((folder / DEPLOYED).read_text(encoding="utf-8"))["rows"]
        return tuple(_served_row(row, trained, judged) for row in rows), []
    except UNREADABLE as error:
        return (), [f"{DEPLOYED} cannot be read ({type(error).__name__}: {error})"]


def _served_row(row: dict[str, Any], trained: Mapping[str, float], judged: Metric) -> Served:
    speed = sorted(row["speed"], key=lambda at: at["batch"])
    smallest, largest = speed[0], speed[-1]
    way = Way(format_of(row), bool(row["sparse_layers"]), row["backend"])
    names = sorted({*METRICS, judged.name})
    metrics = {name: value for name in names if (value := row["metrics"].get(name)) is not None}
    return Served(
        place=ServingPlace(device_of(row), smallest["batch"], largest["batch"], _host(row["environment"])),
        way=way,
        metrics=metrics,
        latency_ms_p50=float(smallest["latency_ms_p50"]),
        latency_ms_p99=float(smallest["latency_ms_p99"]),
        samples_per_s=float(largest["serve_samples_per_s"]),
        weights_gib=float(row["weights_gib"]),
        exclusive=row["exclusive"],
        accurate=_as_accurate(metrics, trained, judged),
        cpu_used_by_others=row.get("cpu_used_by_others") if row["device"] == "cpu" else None,
        latency_by=_latency_by(smallest, way),
    )


def _latency_by(at: Mapping[str, Any], way: Way) -> str | None:
    """at: the entry of the smallest batch."""
    kind = "" if bool(at["sparse_layers"]) == way.sparse else "2:4 " if at["sparse_layers"] else "dense "
    return f"{kind}by {at['backend']}" if kind or at["backend"] != way.backend else None


def format_of(row: Mapping[str, Any]) -> str:
    """The format in which a row of deploy.json was served: its own, or that of all layers if none was faster
    in 8 bits.
    """
    if row["format"] in QUANTISED and not row["quantised_layers"]:
        return "fp32" if row["device"] == "cpu" else "bf16"
    return row["format"]


def device_of(row: Mapping[str, Any]) -> str:
    """The device on which a row of deploy.json, or mpx.bench, was measured."""
    environment = row["environment"]
    return (cpu(environment) or "an unknown CPU") if row["device"] == "cpu" else environment["device"][0]


def _host(environment: Mapping[str, Any]) -> str | None:
    known = {key: environment.get(key) for key in HOST} | {
        "mpx": mpx_of(dict(environment)),
        "host": environment.get("host"),
    }
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


@dataclass(frozen=True)
class Serving:
    """One setting, served in one way at one place; estimates over its seeds."""

    place: ServingPlace
    way: Way
    metric: Estimate | None
    latency_ms_p50: Estimate
    latency_ms_p99: Estimate
    samples_per_s: Estimate
    weights_gib: Estimate
    exclusive: bool  # every seed
    cpu_used_by_others: float | None  # mean share of the cores' time; None on a GPU
    accurate: bool  # every seed
    latency_by: str  # what served the smallest batch, if that was not `way` for every seed
    # the compared throughput, over seeds alone on the device; None unless all seeds are accurate
    counted: Estimate | None

    @property
    def spot(self) -> Spot:
        return self.place.device, self.place.largest, self.place.host


def servings(runs: Iterable[Run], metric: str) -> list[Serving]:
    """Every way in which these runs of one setting were served."""
    of_way: dict[tuple[ServingPlace, Way], dict[int, Served]] = defaultdict(dict)
    for run in runs:
        for served in run.served if run.status == "completed" else ():
            of_way[served.place, served.way][run.seed] = served  # the last of several rows is the newest
    return [_serving(place, way, list(seeds.values()), metric) for (place, way), seeds in of_way.items()]


def _serving(place: ServingPlace, way: Way, seeds: list[Served], metric: str) -> Serving:
    accurate = all(one.accurate for one in seeds)
    same, used = (
        f"by {way.backend}",
        [share for one in seeds if (share := one.cpu_used_by_others) is not None],
    )
    by = {one.latency_by or same for one in seeds}
    return Serving(
        place,
        way,
        metric=estimate([one.metrics[metric] for one in seeds if metric in one.metrics]),
        latency_ms_p50=Estimate.of([one.latency_ms_p50 for one in seeds]),
        latency_ms_p99=Estimate.of([one.latency_ms_p99 for one in seeds]),
        samples_per_s=Estimate.of([one.samples_per_s for one in seeds]),
        weights_gib=Estimate.of([one.weights_gib for one in seeds]),
        exclusive=all(one.exclusive for one in seeds),
        cpu_used_by_others=fmean(used) if used else None,
        accurate=accurate,
        latency_by=" or ".join(sorted(by)) if by != {same} else "",
        counted=estimate([one.samples_per_s for one in seeds if one.exclusive]) if accurate else None,
    )


def places(group: Group) -> list[ServingPlace]:
    found = {serving.place for row in group.rows for serving in servings(row.runs, group.metric.name)}
    return sorted(found, key=lambda place: (place.device, place.largest, place.smallest, str(place.host)))


def order(way: Way) -> tuple[int, bool, str]:
    return FORMATS.index(way.format), way.sparse, way.backend


def usual_spot(rows: list[Row], control: str | None, metric: str) -> Spot | None:
    """The spot at which most settings were served; one of the control's, if its speed counts anywhere."""
    counted = {row.setting: {one.spot for one in servings(row.runs, metric) if one.counted} for row in rows}
    settings = Counter(spot for spots in counted.values() for spot in spots)
    possible = counted.get(control or "") or settings
    return min(possible, key=lambda spot: (-settings[spot], str(spot)), default=None)


def fastest(row: Row, spot: Spot | None, metric: str) -> Serving | None:
    """The fastest of the ways at `spot` with the most seeds, since the best of few seeds may be chance. Only
    speeds that count.
    """
    return max(_counted(row, spot, metric), key=lambda one: one[:2], default=(0, 0.0, None))[2]


def plainest(row: Row, group: Group) -> Serving | None:
    """The way at `group.served_at` whose format is highest; of several such, dense and the fastest. Only
    speeds that count.
    """
    counted = _counted(row, group.served_at, group.metric.name)
    return min(counted, key=lambda one: (*order(one[2].way)[:2], -one[1]), default=(0, 0.0, None))[2]


def _counted(row: Row, spot: Spot | None, metric: str) -> list[tuple[int, float, Serving]]:
    """(number of seeds, samples/s, the serving) of each way at the spot whose speed counts."""
    return [
        (one.counted.n, one.counted.mean, one)
        for one in servings(row.runs, metric)
        if one.counted and one.spot == spot
    ]


def was_served(rows: Iterable[Row]) -> bool:
    return any(run.served for row in rows for run in row.runs)


def by_way(group: Group, place: ServingPlace) -> Iterator[tuple[Row, dict[Way, Serving]]]:
    """Each setting that was served at this place."""
    for row in group.rows:
        if ways := {
            serving.way: serving
            for serving in servings(row.runs, group.metric.name)
            if serving.place == place
        }:
            yield row, ways
