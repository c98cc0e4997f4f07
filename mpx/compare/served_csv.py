"""served.csv, beside results.csv: one row per run and way to serve it, written and read without loss."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpx.compare.deployed import FIGURES, wrong
from mpx.compare.metric import METRICS
from mpx.compare.results import READERS, written
from mpx.compare.run import Run, Served, ServingPlace, Way
from mpx.compare.run_tables import RUN, key_of, with_table
from mpx.csv_file import to_text

SERVED = "served.csv"
KINDS = {  # fields of ServingPlace, Way and Served
    "device": str, "smallest": int, "largest": int, "host": str, "format": str, "sparse": bool, "backend": str,
    "tuned": bool, "asked": str, "exclusive": bool, "accurate": bool, "latency_by": str,
}  # fmt: skip
HEADS = {"smallest": "latency_batch", "largest": "throughput_batch"}  # where the column has another name than the field
COLUMNS = (*RUN, *(HEADS.get(name, name) for name in KINDS), *METRICS, *FIGURES)  # then those of other metrics, which have a slash


def to_csv(runs: Iterable[Run]) -> str:
    """A header, and one row per way in which a run was served. Unknown values are empty."""
    runs = list(runs)
    others = sorted({name for run in runs for served in run.served for name in served.metrics.keys() - METRICS.keys()})
    columns = (*COLUMNS, *others)
    return to_text(columns, (dict(zip(columns, _values(run, served, others), strict=True)) for run in runs for served in run.served))


def _values(run: Run, served: Served, others: list[str]) -> list[str]:
    fields = vars(served.place) | vars(served.way) | vars(served)
    values = [*(fields[name] for name in KINDS), *map(served.metrics.get, METRICS), *(fields[name] for name in FIGURES)]
    return [*key_of(run), *map(written, [*values, *map(served.metrics.get, others)])]


def with_served(runs: Iterable[Run], results: Path) -> list[Run]:
    """The runs with their rows of the served.csv beside `results`. Raises UserError for a file that `to_csv` cannot have written."""
    return with_table(runs, results.with_name(SERVED), _served, lambda run, served: replace(run, served=tuple(served)))


def _served(row: dict[str, str]) -> Served:
    def read(name: str, kind: type) -> Any:
        text = row[HEADS.get(name, name)]
        return READERS[kind](text) if text else None

    values = {name: read(name, kind) for name, kind in KINDS.items()} | {name: read(name, float) for name in FIGURES}
    place, way = (kind(*(values.pop(name) for name in kind.__dataclass_fields__)) for kind in (ServingPlace, Way))
    metrics = {name: value for name in row if "/" in name and (value := read(name, float)) is not None}
    served = Served(place, way, metrics, **values)
    if (what := wrong(served)) is not None or None in (way.sparse, way.tuned, served.accurate):
        raise ValueError(f"{what[0]} is {what[1]!r}" if what else "a field is empty")
    return served
