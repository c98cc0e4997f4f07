"""The progress of a sweep. Each process that has finished a job reads it from the sweep's folder and prints it."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from mpx.render.sweep_progress import progress_line
from mpx.runs.folder import DONE
from mpx.sweep.job_report import FILE, IN_USE, NOT_STARTED, STARTED, failed_now, read_reports
from mpx.whole_file import below_output_dir, write_whole

SIZE = "size.json"


@dataclass(frozen=True)
class Progress:
    total: int
    at_once: int
    reports: list[dict[str, Any]]  # of the jobs that have ended
    running_s: list[float]  # seconds since each running job began

    @property
    def left(self) -> int:
        """Jobs that have not begun."""
        return max(0, self.total - len(self.reports) - len(self.running_s))

    def seconds_left(self) -> float | None:
        """The estimated time until the last job ends, from the mean of the finished jobs; None before the first.

        Skipped and failed runs do not count, because they do not tell how long a whole run takes.
        """
        took = [report["seconds"] for report in self.reports if report["status"] in DONE and not report["skipped"]]
        if not took:
            return None
        usual = mean(took)
        work = self.left * usual + sum(max(0.0, usual - ran) for ran in self.running_s)
        return work / max(1, min(self.at_once, self.left + len(self.running_s)))


def write_size(sweep: Path, total: int, at_once: int) -> None:
    """Raises UserError where the sweep's folder cannot be written."""
    with below_output_dir(sweep):
        sweep.mkdir(parents=True, exist_ok=True)
        write_whole(sweep / SIZE, json.dumps({"total": total, "at_once": at_once}))


def read_progress(sweep: Path) -> Progress:
    reports = read_reports(sweep)
    ended = {report["job"] for report in reports}
    running = [file for file in sweep.glob(f"job*/{STARTED}") if int(file.parent.name.removeprefix("job")) not in ended]
    return Progress(
        **json.loads((sweep / SIZE).read_text()),
        reports=reports,
        running_s=[max(0.0, time.time() - float(f.read_text())) for f in running],
    )


def begin(job: Path) -> None:
    """Note that a job begins, perhaps not for the first time. job: its folder. Raises UserError where that cannot be written."""
    with below_output_dir(job):
        (job / FILE).unlink(missing_ok=True)
        write_whole(job / STARTED, str(time.time()))  # machines have no other clock in common
    if job.name == "job0":
        size = json.loads((job.parent / SIZE).read_text())
        print(f"sweep of {size['total']} jobs, {size['at_once']} at once", flush=True)


def end(job: Path, report: dict[str, Any]) -> None:
    """Write the report of a job that has ended, and print the sweep's progress. job: its folder. Raises UserError as `begin`."""
    with below_output_dir(job):
        write_whole(job / FILE, json.dumps(report))
    show(job.parent, report)


def show(sweep: Path, report: dict[str, Any]) -> None:
    """Print why the job of `report` did not complete, if so, and the progress of the sweep after it."""
    if report["code"]:
        print(f"job {report['job']} {report['status']}: {report['line']}", file=sys.stderr, flush=True)
    now = read_progress(sweep)
    done = sum(report["code"] == 0 for report in now.reports)
    failed = sum(bool(report["code"]) and report["status"] != IN_USE for report in now.reports)
    counts = {"done": done, "total": now.total, "failed": failed, "running": len(now.running_s), "left": now.left}
    print(progress_line(report, **counts, seconds_left=now.seconds_left()), flush=True)


def hold_back(job: Path, known: dict[str, Any]) -> None:
    """Write the report of a job that fail_fast=true does not start. known: its number and overrides."""
    why = {"status": NOT_STARTED, "line": "fail_fast=true", "code": None, "seconds": 0.0, "skipped": True}
    write_whole(job / FILE, json.dumps(known | why | {"folder": None, "metrics": {}}))


def must_stop(job: Path) -> bool:
    """Whether a job of the sweep has failed; with fail_fast=true no further job then begins. job: the folder of the next job."""
    return any(failed_now(report) for report in read_reports(job.parent))
