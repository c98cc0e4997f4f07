"""What a job of a sweep leaves in the sweep's folder: `started` when it begins, `report.json` when it has ended."""

import json
import os
from pathlib import Path
from typing import Any

from mpx.whole_file import write_whole

REPORT = "MPX_SWEEP_REPORT"  # environment variable: the file in which a job of a sweep says how it ended
FILE, STARTED = "report.json", "started"  # in the job's own folder below the sweep's
NOT_STARTED = "not started"  # the status of a job that fail_fast=true held back


def in_sweep() -> bool:
    return REPORT in os.environ


def report(status: str, folder: Path | None, line: str, metrics: dict[str, Any] | None = None, *, skipped: bool = False) -> None:
    """Called by a job: tell the sweep, if there is one, how this run ended. skipped: the run was already there and was left alone."""
    if in_sweep():
        ended = {"status": status, "folder": str(folder) if folder else None, "line": line, "metrics": metrics or {}, "skipped": skipped}
        write_whole(Path(os.environ[REPORT]), json.dumps(ended))


def read_reports(sweep: Path) -> list[dict[str, Any]]:
    """The reports of all jobs of a sweep that have ended, by job number."""
    found = (json.loads(file.read_text()) for file in sweep.glob(f"job*/{FILE}"))  # without a number: its process is just ending
    return sorted((report for report in found if "job" in report), key=lambda report: report["job"])


def failed_now(report: dict[str, Any]) -> bool:
    """Whether this job is a failure of this sweep: a diverged run is a result, and one that failed earlier and was skipped is known."""
    return bool(report["code"]) and report["status"] != "diverged" and not report["skipped"]
