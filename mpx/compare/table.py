"""The tables of a study: results.csv, which is written and read without loss, so that a committed file is
enough for a comparison; and differences.csv, which is only written.
"""

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mpx.compare.comparison import Comparison, Group, Row
from mpx.compare.run import Run, Served, ServingPlace, Way, changes_of, text_of
from mpx.errors import UserError
from mpx.runs.result import predictions_from
from mpx.system.whole_file import BadRow, rows_of, to_text

RESULTS, DIFFERENCES = "results.csv", "differences.csv"
# type of a field -> the type of its value, for the fields that are a single value
SCALARS: dict[Any, type] = {form: kind for kind in (bool, int, float, str) for form in (kind, kind | None)}
FIELDS = {one.name: one for one in fields(Run) if one.type in SCALARS or one.name == "changes"}
# columns that are only there if a run has a value
OPTIONAL = [one.name for one in FIELDS.values() if one.default is None]
METRICS_AFTER = [*FIELDS].index("status") + 1
OF_DECISION = ("difference", "low", "high", "p", "p_holm", "more_seeds", "method", "verdict", "reason")
OF_QUESTION = ("margin", "margin_for", "confidence")


def results_csv(runs: Iterable[Run]) -> str:
    """One row per run: its fields, a column per metric, and its environment, ways to serve it and predictions
    as JSON.
    """
    runs = list(runs)
    metrics = sorted({name for run in runs for name in run.metrics})
    scalars = [
        name for name in FIELDS if name not in OPTIONAL or any(getattr(run, name) is not None for run in runs)
    ]
    nested = [
        "environment",
        *(name for name in ("served", "predictions") if any(getattr(run, name) for run in runs)),
    ]
    columns = [*scalars[:METRICS_AFTER], *metrics, *scalars[METRICS_AFTER:], *nested]
    return to_text(columns, map(_row_of, runs))


def _row_of(run: Run) -> dict[str, str]:
    row = {name: _written(getattr(run, name)) for name in FIELDS if name != "changes"}
    row |= {name: _written(value) for name, value in run.metrics.items()}
    row |= {"changes": text_of(run.changes), "environment": json.dumps(run.environment, sort_keys=True)}
    if run.served:
        row["served"] = json.dumps([asdict(one) for one in run.served])
    if run.predictions is not None:
        predictions = run.predictions
        row["predictions"] = json.dumps(
            {"test_set": predictions.test_set, "samples": predictions.samples, "right": predictions.text}
        )
    return row


def read_results(path: Path) -> list[Run]:
    """The runs of a results.csv, in its order. Raises UserError, naming the line, for a file that was not
    written by results_csv.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
        return [_run(line, row) for line, row in rows_of(text)]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"results={path} cannot be read ({reason}). Give the path of a results.csv."
        ) from error
    except (BadRow, csv.Error) as error:
        raise UserError(
            f"results={path}, {error}. Correct it, or write the file again from its study."
        ) from error


def _run(line: int, row: dict[str, str]) -> Run:
    if lacking := [name for name in FIELDS if name not in row and name not in OPTIONAL]:
        raise BadRow(f"which has no column {lacking[0]}, is not as mpx wrote it")
    column = ""
    try:
        values: dict[str, Any] = {}
        for column in FIELDS:
            values[column] = _read(column, row.get(column, ""))
        for column in filter(row.get, (name for name in row if "/" in name)):
            values.setdefault("metrics", {})[column] = float(row[column])
        for column, read in NESTED.items():
            if row.get(column):
                values[column] = read(json.loads(row[column]))
        return Run(**{"metrics": {}} | values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        value = f"={row[column][:60]}" if row.get(column) else ""
        raise BadRow(
            f"line {line}: {column}{value} cannot be read ({type(error).__name__}: {error})"
        ) from error


def _served(rows: list[dict[str, Any]]) -> tuple[Served, ...]:
    return tuple(
        Served(**row | {"place": ServingPlace(**row["place"]), "way": Way(**row["way"])}) for row in rows
    )


NESTED: dict[str, Callable[[Any], Any]] = {  # column of JSON -> its reader
    "environment": dict,
    "served": _served,
    "predictions": lambda found: predictions_from(found["test_set"], found["samples"], found["right"]),
}


def _read(name: str, text: str) -> Any:
    """The value of a field; None for an empty one that may be unknown."""
    if name == "changes":
        return changes_of(text)
    kind = SCALARS[FIELDS[name].type]
    if not text and FIELDS[name].type is not kind:
        return None
    return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)


def _written(value: Any) -> str:
    """Floats at full precision (repr), booleans as true and false."""
    if value is None:
        return ""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else repr(value)
        if isinstance(value, float)
        else str(value)
    )


def differences_csv(comparison: Comparison) -> str:
    """Each setting's difference to its control with both intervals and the decision, at full precision.

    With a plan of looks, seeds and diverged count the seeds that the decision rests on, as the difference
    does.
    """
    compared = [(row, group) for group in comparison.groups for row in group.rows if row.decision is not None]
    rows = [_difference(row, group, comparison) for row, group in compared]
    first = ("model", "data", "control", "setting", "metric", "seeds", "diverged", *OF_DECISION)
    return to_text(rows[0] if rows else first, rows)


def _difference(row: Row, group: Group, comparison: Comparison) -> dict[str, str]:
    look = row.decision.look if row.decision else None
    counted = [run for run in row.runs if look is None or run.seed < look.seeds]
    population = row.decision.population if row.decision else None
    cells = {
        "model": group.model,
        "data": group.data,
        "control": group.control,
        "setting": row.setting,
        "metric": group.metric.name,
        "seeds": len(counted),
        "diverged": sum(not run.completed for run in counted),
        **{name: getattr(row.decision, name) for name in OF_DECISION},
        **{f"population_{name}": getattr(population, name, None) for name in ("low", "high", "reason")},
        **{name: getattr(comparison.question, name) for name in OF_QUESTION},
        "margin_is": "relative" if group.metric.relative else "absolute",
    }
    return {name: _written(value) for name, value in cells.items()}
