"""The files of a job in the sweep's folder: `started` when the job begins, `report.json` when it has ended."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpx.environment_variables import report_file
from mpx.whole_file import write_whole

FILE, STARTED = "report.json", "started"  # in the job's folder, inside the sweep's
NOT_STARTED = "not started"  # the status of a job that fail_fast=true does not start
IN_USE = "in use"  # of a job whose run another process trains


def in_sweep() -> bool:
    return report_file() is not None


def report(status: str, folder: Path | None, line: str, record: dict[str, Any] | None = None, *, skipped: bool = False) -> None:
    """Called in a job: tell the sweep, if there is one, how this run ended.

    record: the parts of the run's that the sweep reads. skipped: the run existed and was left as it is.
    Where the report cannot be written, as on a full disk, the sweep goes by the exit code.
    """
    if (file := report_file()) is not None:
        ended = {"status": status, "folder": str(folder) if folder else None, "line": line, "record": record or {}, "skipped": skipped}
        with suppress(OSError):
            write_whole(file, json.dumps(ended))


def note_start(job: Path) -> None:
    """Write when a job starts. job: its folder."""
    write_whole(job / STARTED, str(time.time()))  # machines have no other clock in common


def started_at(job: Path) -> float:
    return float((job / STARTED).read_text())


def each_report(sweep: Path) -> Iterator[dict[str, Any]]:
    """The reports of all jobs that have ended, one at a time: as one list they take 6 KiB of memory for each job."""
    for file in sweep.glob(f"job*/{FILE}"):
        with suppress(FileNotFoundError):  # the job has just begun again
            report = json.loads(file.read_text())
            if "job" in report:  # no number: it is still ending
                yield report


def read_reports(sweep: Path) -> list[dict[str, Any]]:
    """The reports of all jobs that have ended, by job number."""
    return sorted(each_report(sweep), key=lambda report: report["job"])


def failed_now(report: dict[str, Any]) -> bool:
    """Whether the job failed in this sweep. A diverged run is a result, and a skipped run failed in an earlier sweep."""
    return bool(report["code"]) and report["status"] != "diverged" and not report["skipped"]
