"""Aggregate over seeds how the settings of a group were served, and choose the device and batch size for the comparison."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpx.compare.comparison import Estimate, Group, Row
from mpx.compare.deployed import FIGURES
from mpx.compare.run import Run, Served, ServingPlace, Way
from mpx.compare.statistics import estimate
from mpx.compare.words import UNKNOWN
from mpx.settings.deploy import FORMATS

Spot = tuple[str, int, str | None]  # device, samples per call, and host


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
    accurate: bool  # every seed
    latency_by: str  # what served the smallest batch, if that was not `way` for every seed
    counted: Estimate | None  # the compared throughput, over seeds alone on the device; None unless all seeds are accurate

    @property
    def spot(self) -> Spot:
        return self.place.device, self.place.largest, self.place.host


def told_apart(runs: Sequence[Iterable[Served]]) -> list[tuple[Served, ...]]:
    """The rows of each run's deploy.json, without what was asked for, except where two rows of a run were then the same way on a device."""

    def way(one: Served) -> Way:
        return replace(one.way, asked=None)

    alike = {found for rows in runs for found, count in Counter((way(one), one.place.device) for one in rows).items() if count > 1}
    return [tuple(one if (way(one), one.place.device) in alike else replace(one, way=way(one)) for one in rows) for rows in runs]


def servings(runs: Iterable[Run], metric: str) -> list[Serving]:
    """Every way in which these runs of one setting were served."""
    found: dict[tuple[ServingPlace, Way], dict[int, Served]] = defaultdict(dict)
    for run in runs:
        for served in run.served if run.status == "completed" else ():
            found[served.place, served.way][run.seed] = served  # the last of several rows is the newest
    less = {(place, _numbers(way)) for (place, way), seeds in found.items() for one in seeds.values() if not one.accurate}
    return [
        _serving(place, way, list(seeds.values()), metric, accurate=(place, _numbers(way)) not in less)
        for (place, way), seeds in found.items()
    ]  # fmt: skip


def _numbers(way: Way) -> Way:
    """The way without its backend: the accuracy depends on the format alone, and backends may differ between seeds."""
    return replace(way, backend="")


def _serving(place: ServingPlace, way: Way, seeds: list[Served], metric: str, *, accurate: bool) -> Serving:
    same = f"by {way.backend}"
    by = {one.latency_by or same for one in seeds}
    return Serving(
        place,
        way,
        metric=estimate([one.metrics[metric] for one in seeds if metric in one.metrics]),
        **{name: estimate([getattr(one, name) for one in seeds]) for name in FIGURES},
        exclusive=all(one.exclusive for one in seeds),
        accurate=accurate,
        latency_by=" or ".join(sorted(by)) if by != {same} else "",
        counted=estimate([one.samples_per_s for one in seeds if one.exclusive]) if accurate else None,
    )


def places(group: Group) -> dict[ServingPlace, str]:
    """Place -> its device, with the host where others have the same device and batch sizes."""
    found = {serving.place for row in group.rows for serving in servings(row.runs, group.metric.name)}
    hosts = Counter(replace(place, host=None) for place in found)
    places = sorted(found, key=lambda place: (place.device, place.largest, place.smallest, place.host or ""))
    return {one: one.device if hosts[replace(one, host=None)] == 1 else f"{one.device} ({one.host or UNKNOWN})" for one in places}


def order(way: Way) -> tuple[int, bool, bool, str, str]:
    return FORMATS.index(way.format), way.sparse, way.tuned, way.backend, way.asked or ""


def spots(row: Row, metric: str) -> list[Spot]:
    """The devices and batch sizes at which this setting's serving speed counts."""
    return sorted({serving.spot for serving in servings(row.runs, metric) if serving.counted}, key=_in_order)


def _in_order(spot: Spot) -> tuple[str, int, str]:
    device, batch, host = spot
    return device, batch, host or ""


def usual_spot(rows: list[Row], control: str | None, metric: str) -> Spot | None:
    """The spot at which most settings were served; one of the control's, if its speed counts anywhere."""
    everywhere = {row.setting: spots(row, metric) for row in rows}
    possible = everywhere.get(control) or {spot for found in everywhere.values() for spot in found}
    return min(possible, key=lambda spot: (-sum(spot in found for found in everywhere.values()), _in_order(spot)), default=None)


def fastest(row: Row, spot: Spot | None, metric: str) -> Serving | None:
    """The fastest of the ways at `spot` with the most seeds, since the best of few seeds may be chance. Only speeds that count."""
    there = [serving for serving in servings(row.runs, metric) if serving.counted and serving.spot == spot]
    return max(there, key=lambda serving: (serving.counted.n, serving.counted.mean), default=None)


def was_served(rows: Iterable[Row]) -> bool:
    return any(run.served for row in rows for run in row.runs)


def by_way(group: Group, place: ServingPlace) -> Iterator[tuple[Row, dict[Way, Serving]]]:
    """Each setting that was served at this place."""
    for row in group.rows:
        if found := {serving.way: serving for serving in servings(row.runs, group.metric.name) if serving.place == place}:
            yield row, found
