"""Read a run's result.json, and read and write its deploy.json."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mpx.errors import UserError
from mpx.record.result import SCHEMA_VERSION, STATUSES
from mpx.runs.folder import DEPLOYED, LAST, LOCK, OWN_LOOP, RESULT, read_result, refuse_unreadable
from mpx.whole_file import try_writing, write_whole

CARD, EXPORTS = "card.md", "served"  # beside deploy.json; the exports are a folder
MAX_BYTES = 2**28  # of a result.json, which has some kilobytes per layer
MAX_WAIT_S = 10  # for another process that has locked the folder
Row = dict[str, Any]  # of deploy.json; a file may hold anything
ROW_KEY = ("format", "weights", "device")  # deploy.json has one row for each combination
WEIGHTS_KEY = ("checkpoint_sha256", "config", "finetune", "quantised_layers")  # with the same ROW_KEY: rows of the same weights


def completed_run(run: str) -> tuple[Path, dict[str, Any]]:
    """The folder and the record of the run that `run` names. Raises UserError if it is not a completed run of this version of mpx."""
    folder = Path(run)
    if not os.path.isdir(folder):  # Path.is_dir raises where a name is too long or a folder may not be read
        raise UserError(f"run={run} is not a folder (seen from {Path.cwd()}). Give the folder of a run, which holds {RESULT}.")
    if not os.path.isfile(folder / RESULT):
        raise UserError(
            f"run={run} has no {RESULT}: it is not a run's folder, or its run has not ended. Give the folder of a completed run."
        )
    refuse_unreadable(folder)
    record = read_result(folder) if os.path.getsize(folder / RESULT) <= MAX_BYTES else None
    config = record.get("config") if record is not None else None
    if isinstance(config, dict) and (config.get("loop") == OWN_LOOP or "module" in config):
        whose = "a module of your own" if "module" in config else "a loop of your own"
        raise UserError(f"run={run} is of {whose}, so mpx does not know how to build its model. Use model=, data= and ckpt=FILE of yours.")
    if record is None or record.get("schema_version") != SCHEMA_VERSION or record["status"] not in STATUSES or not _settings(record):
        raise UserError(f"run={run}: {RESULT} was not written by this version of mpx, or is damaged. Give the folder of another run.")
    if record["status"] != "completed":
        raise UserError(
            f"run={run}: its run is {record['status']}, and only a completed one can be served. Give the folder of another run."
        )
    if not os.path.isfile(folder / LAST):
        raise UserError(f"run={run} has no {LAST}, which holds its weights. Give the folder of another run.")
    return folder, record


def _settings(record: dict[str, Any]) -> bool:
    """Whether the record has the settings and metrics that deploying reads."""
    config, metrics = record.get("config"), record.get("metrics")
    return (
        isinstance(record.get("setting"), dict)
        and isinstance(config, dict)
        and all(isinstance(config.get(part), dict) for part in ("model", "data", "trainer"))
        and isinstance(metrics, dict)
        and all(value is None or isinstance(value, int | float) for value in metrics.values())
    )


def tested_whole(trainer: dict[str, Any]) -> bool:
    """Whether the training tested the whole test set. The share 1.0 means all batches, the number 1 one batch."""
    limit = trainer.get("limit_test_batches")
    return isinstance(limit, float) and limit == 1


def own_files(model: dict[str, Any], data: dict[str, Any], ckpt: str, out: str | None) -> tuple[Path, dict[str, Any]]:
    """The folder of deploy.json for weights without a run, and what is known of them, in the form of a run's record."""
    weights = Path(ckpt)
    folder = weights.with_name(f"{weights.name}-served") if out is None else Path(out)
    return folder, {"config": {"model": model, "data": data, "trainer": {}}, "metrics": {}}


def check_writable(folder: Path, files: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
    """Raise UserError before the measuring if `add_row`, or writing files of these names, would fail after it."""
    rows_of(folder)
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    lock = folder / LOCK  # it may be another user's
    locks = not os.path.lexists(lock) or (os.path.isfile(lock) and os.access(lock, os.W_OK))
    try:
        try_writing(there, *((files, folders) if there == folder else ()))
        for name in filter(os.path.isdir, (folder / name for name in folders)):
            try_writing(name)
    except OSError as error:
        what = f"{error.filename} ({error.strerror})"
    else:
        what = "" if locks else str(lock)
    if what:
        raise UserError(
            f"{folder}: {DEPLOYED} and what belongs to it cannot be written there: {what}. Change that, or give another folder: run= of a "
            "copy of the run's, or with ckpt= another out=."
        )


def add_row(folder: Path, row: dict[str, Any]) -> dict[str, Any] | None:
    """Write `row` to the folder's deploy.json, in place of an earlier row with the same ROW_KEY, whose exports stay if they still hold.

    Returns the earlier row.
    """
    earlier = None
    with writing(folder, DEPLOYED):
        rows = rows_of(folder)
        for earlier in [old for old in rows if _agree(old, row, ROW_KEY)]:
            rows.remove(earlier)
            if _agree(earlier, row, WEIGHTS_KEY):
                row = row | {"exports": _there(folder, earlier.get("exports")) | row["exports"]}
        write_whole(folder / DEPLOYED, json.dumps({"schema_version": 1, "rows": [*rows, row]}, indent=2, allow_nan=False) + "\n")
    return earlier


@contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """Let no other command write into the folder, which is made if it is not there, while this one reads the rows and writes `name`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK, timeout=MAX_WAIT_S):
            yield
    except Timeout:
        raise UserError(f"{folder} is in use by another process, so {name} is not written. Wait for that, then repeat.") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot write {name} there ({error.strerror}). Make room there, or allow it.") from error


def _agree(old: dict[str, Any], row: dict[str, Any], keys: Iterable[str]) -> bool:
    return all(old.get(key) == row.get(key) for key in keys)


def _there(folder: Path, exports: Any) -> dict[str, Any]:
    """The exports of an earlier row whose files are still there."""
    files = exports.items() if isinstance(exports, dict) else ()
    return {kind: file for kind, file in files if isinstance(file, dict) and os.path.isfile(folder / str(file.get("file")))}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the folder's deploy.json. Raises UserError for a file that mpx did not write, which must not be overwritten."""
    path = folder / DEPLOYED
    if not os.path.lexists(path):
        return []
    try:
        rows = None if not path.is_file() else json.loads(path.read_bytes())["rows"]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}), so no row can be added to it. Allow reading it.") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} was not written by mpx, or is damaged. Remove it.")
    return rows
