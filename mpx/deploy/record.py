"""A run's files: whether it can be served, and deploy.json, which has a row for each way in which it was."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mpx.errors import UserError
from mpx.runs.folder import DEPLOYED, LAST, LOCK, OWN_LOOP, RESULT, read_result
from mpx.runs.result import SCHEMA_VERSION
from mpx.system.whole_file import try_writing, write_whole

CARD, EXPORTS = "card.md", "served"  # beside deploy.json; the exports are a folder
PREDICTIONS = "predictions-{}.csv"
MAX_WAIT_S = 10  # for another process that has locked the folder
Row = dict[str, Any]  # of deploy.json
ROW_KEY = ("format", "weights", "device")  # deploy.json has one row for each combination


def completed_run(run: str) -> tuple[Path, dict[str, Any]]:
    """The folder and the record of the run that `run` names. Raises UserError if it is not a completed run of
    this mpx.
    """
    folder = Path(run)
    if not os.path.isfile(folder / RESULT):  # Path.is_file raises where a name is too long
        raise UserError(
            f"run={run} has no {RESULT} (seen from {Path.cwd()}). Give the folder of a completed run."
        )
    record = read_result(folder)
    config = record.get("config") if record is not None else None
    if record is None or record.get("schema_version") != SCHEMA_VERSION or not isinstance(config, dict):
        raise UserError(
            f"run={run}: {RESULT} was not written by this version of mpx. Give the folder of another run."
        )
    if config.get("loop") == OWN_LOOP or "module" in config:
        whose = "a module of your own" if "module" in config else "a loop of your own"
        raise UserError(
            f"run={run} is of {whose}, so mpx does not know how to build its model. Use model=, data= and "
            "ckpt=FILE of yours."
        )
    if record["status"] != "completed" or not os.path.isfile(folder / LAST):
        problem = f"is {record['status']}" if record["status"] != "completed" else f"has no {LAST}"
        raise UserError(
            f"run={run} {problem}, and only a completed run with its weights can be served. Give another run."
        )
    return folder, record


def own_files(model: Row, data: Row, ckpt: str, out: str | None) -> tuple[Path, dict[str, Any]]:
    """The folder of deploy.json for weights without a run, and what is known of them, in the form of a run's
    record.
    """
    weights = Path(ckpt)
    folder = weights.with_name(f"{weights.name}-served") if out is None else Path(out)
    return folder, {"config": {"model": model, "data": data, "trainer": {}}, "metrics": {}}


def check_writable(folder: Path) -> None:
    """Raise UserError before the measuring if writing into `folder` would fail after it."""
    rows_of(folder)
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    try:
        try_writing(existing)
    except OSError as error:
        raise _unwritable(folder, error) from error


def add_row(folder: Path, row: Row) -> None:
    """Write `row` to the folder's deploy.json, in place of an earlier row with the same ROW_KEY."""
    with writing(folder):
        kept = [old for old in rows_of(folder) if any(old.get(key) != row[key] for key in ROW_KEY)]
        text = json.dumps({"schema_version": 1, "rows": [*kept, row]}, indent=2, allow_nan=False)
        write_whole(folder / DEPLOYED, text + "\n")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Let no other command write into the folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK, timeout=MAX_WAIT_S):
            yield
    except Timeout:
        raise UserError(f"{folder} is in use by another process. Wait for that, then repeat.") from None
    except OSError as error:
        raise _unwritable(folder, error) from error


def rows_of(folder: Path) -> list[Row]:
    """The rows of the folder's deploy.json. Raises UserError for a file that mpx did not write, which it must
    not overwrite.
    """
    path = folder / DEPLOYED
    if not os.path.lexists(path):
        return []
    try:
        rows = json.loads(path.read_bytes())["rows"]
        if not all(isinstance(row, dict) for row in rows):
            raise TypeError("a row is no mapping")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read, or was not written by mpx. Allow reading it, or remove it."
        ) from error
    return rows


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"{folder}: cannot write {error.filename or DEPLOYED} ({error.strerror}). Make room there or allow "
        "it; or give run= of a copy, or with ckpt= another out=."
    )
