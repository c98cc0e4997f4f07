"""results.csv: one row per run, written and read without loss, so that a committed file is enough for a comparison."""

import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from mpx.compare.rules import wrong
from mpx.compare.run import COMPOUND, SIMPLE, Run, changes_of, text_of
from mpx.csv_file import BadRow, columns_of, rows_of, to_text
from mpx.errors import UserError

REQUIRED = ("model", "data", "precision", "sparsity", "status", "seed")
COLUMNS = [field.name for field in fields(Run) if field.name not in COMPOUND]
OPTIONAL = [field.name for field in fields(Run) if field.name in COLUMNS and field.default is None]  # only there if a run has a value
METRICS_AFTER = COLUMNS.index("status") + 1
MAX_SHOWN = 60  # characters of a field that an error shows


def to_csv(runs: Iterable[Run]) -> str:
    """A header and one row per run: its fields, one column per metric, and the environment as JSON. Unknown values are empty."""
    runs = list(runs)
    metrics = sorted({name for run in runs for name in run.metrics})
    there = [name for name in COLUMNS if name not in OPTIONAL or any(getattr(run, name) is not None for run in runs)]
    columns = [*there[:METRICS_AFTER], *metrics, *there[METRICS_AFTER:], "environment"]
    return to_text(columns, (_row(run, there, metrics) for run in runs))


def _row(run: Run, there: Iterable[str], metrics: Iterable[str]) -> dict[str, str]:
    row = {name: written(getattr(run, name)) for name in there} | {name: written(run.metrics.get(name)) for name in metrics}
    return row | {"changes": text_of(run.changes), "environment": json.dumps(run.environment, sort_keys=True)}


def read_results(path: Path) -> list[Run]:
    """The runs of a results.csv. Raises UserError for a file that cannot be read or that to_csv cannot have written."""
    try:
        if path.is_char_device() or path.is_block_device():  # it may have no end
            raise OSError(errno.EINVAL, "a device, not a file")
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            return from_csv(file.read(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"results={path} cannot be read ({getattr(error, 'strerror', None) or error}). Give the path of a results.csv."
        ) from error


def from_csv(text: str, name: str) -> list[Run]:
    """The runs of a results.csv. Raises UserError, naming line and column, for one that to_csv cannot have written. name: for errors."""
    columns = columns_of(text)
    missing = [column for column in COLUMNS if column not in (*OPTIONAL, *columns)]
    if missing:
        why = "its fields are not separated by commas" if len(columns) == 1 else "it was not written by mpx.compare"
        raise UserError(f"results={name} has no column {missing[0]}: {why}. Give another results=FILE.")
    try:
        return [_run(line, row) for line, row in rows_of(text)]
    except BadRow as error:
        raise UserError(f"results={name}, {error}. Correct it, or write the file again from its study.") from error


def _run(line: int, row: dict[str, str]) -> Run:
    try:
        return _read(row)
    except BadColumn as error:
        raise BadRow(f"line {line}: {error}") from error


class BadColumn(ValueError):
    """The message names the column and its value."""


def written(value: Any) -> str:
    """Floats at full precision (repr), booleans as true and false."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _bool(text: str) -> bool:
    """Accepts TRUE too, as spreadsheets write it. Raises KeyError."""
    return {"true": True, "false": False}[text.lower()]


def _object(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{text} is not a JSON object")
    return found


READERS: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: _bool, str: str}


def _read(row: dict[str, str]) -> Run:
    metrics = {name: _value(name, float, text) for name, text in row.items() if "/" in name and text}
    values = {name: _value(name, _reader(kind), row.get(name)) for name, kind in SIMPLE.items()}
    values["changes"] = _value("changes", changes_of, row["changes"]) or {}
    values["environment"] = _value("environment", _object, row.get("environment") or "{}")
    run = Run(**values, metrics=metrics)
    if (found := wrong(run)) is not None:
        raise BadColumn(_not_held(found[0], row.get(found[0], str(found[1]))))
    return run


def _reader(kind: Any) -> Callable[[str], Any]:
    """kind: a type such as int, or float | None."""
    return next(READERS[known] for known in READERS if known == kind or known in getattr(kind, "__args__", ()))


def _not_held(name: str, text: str | None) -> str:
    if text and len(text) > MAX_SHOWN:
        text = f"{text[:MAX_SHOWN]}…"
    return f"{name}={text} is not a valid value of that column"


def _value(name: str, reader: Callable[[str], Any], text: str | None) -> Any:
    """None for an empty field. Raises BadColumn for a required field that is empty."""
    if not text:
        if name in REQUIRED:
            raise BadColumn(f"{name} is missing")
        return None
    try:
        return reader(text)
    except (ValueError, KeyError, RecursionError) as error:
        raise BadColumn(_not_held(name, text)) from error
