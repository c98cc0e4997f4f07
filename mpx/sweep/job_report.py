"""How a job of a sweep tells the sweep how it ended."""

import json
import os
from pathlib import Path
from typing import Any

REPORT = "MPX_SWEEP_REPORT"  # environment variable: the file in which a job of a sweep says how it ended
FILE = "report.json"  # its name, in the job's own folder below the sweep's


def in_sweep() -> bool:
    return REPORT in os.environ


def report(status: str, folder: Path | None, line: str, metrics: dict[str, Any] | None = None) -> None:
    """Called by a job: tell the sweep, if there is one, how this run ended."""
    if in_sweep():
        Path(os.environ[REPORT]).write_text(
            json.dumps({"status": status, "folder": str(folder) if folder else None, "line": line, "metrics": metrics or {}})
        )


def read_reports(sweep: Path) -> list[dict[str, Any]]:
    """The reports of all jobs of a sweep that have ended, by job number."""
    return sorted((json.loads(file.read_text()) for file in sweep.glob(f"job*/{FILE}")), key=lambda report: report["job"])
