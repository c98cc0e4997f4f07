"""What a sweep says: its progress while it runs, and a table of all jobs at its end.

Processes share no memory, and the cluster's run elsewhere. So each job leaves a report in its folder inside
the sweep's, `outputs/_sweep/<machine>-<process id>/job<N>/report.json`; what it measured is in its own
result.json.
"""

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from mpx.errors import MISTAKE, UserError
from mpx.runs.folder import DONE, read_result
from mpx.settings.front_door import errors_in_one_line
from mpx.sweep import cluster
from mpx.sweep.checks import check_sweep, on_all_machines, total_jobs
from mpx.system.environment_variables import report_file
from mpx.system.printing import how_many, span
from mpx.system.whole_file import below_output_dir, write_whole

FILE = "report.json"  # in the job's folder
NOT_STARTED = "not started"  # the status of a job that fail_fast=true does not start
IN_USE = "in use"  # of a job whose run another process trains
FOUND = "optimization_results.yaml"  # hydra-optuna-sweeper writes it to the sweep's folder
NO_TRIALS = "No trials are completed yet."  # Optuna's error
INTERVAL = 0.5  # seconds between two looks for new reports
Report = dict[str, Any]


def report(status: str, folder: Path | None, line: str, *, skipped: bool = False) -> None:
    """Tell the sweep, or the caller of mpx.run, how this run ended. skipped: the run existed and was left as
    it is.

    Where the report cannot be written, as on a full disk, the sweep goes by the exit code.
    """
    if (file := report_file()) is not None:
        with suppress(OSError):
            ended = {
                "status": status,
                "folder": str(folder) if folder else None,
                "line": line,
                "skipped": skipped,
            }
            write_whole(file, json.dumps(ended))


def reported(job: Path, code: int) -> Report:
    """The report that the job has written, or one made from its exit code. job: its folder."""
    if (job / FILE).is_file():
        return json.loads((job / FILE).read_text())
    line = f"ended with exit code {code} before it wrote a record"
    if code < 0:
        line = f"killed by signal {-code}; the same command continues it"
    return {"status": "failed", "folder": None, "line": line, "skipped": False}


def conclude(job: Path, report: Report) -> None:
    """Complete the report of a job that has ended, so that the sweep counts it. job: its folder."""
    write_whole(job / FILE, json.dumps(report))


def each_report(sweep: Path) -> Iterator[Report]:
    """The reports of all jobs that have ended."""
    for file in sweep.glob(f"job*/{FILE}"):
        with suppress(FileNotFoundError):  # the job has just begun again
            report = json.loads(file.read_text())
            if "job" in report:  # its number; without one, the job is still ending
                yield report


def must_stop(sweep: Path) -> bool:
    """Whether a job has failed in this sweep, so that fail_fast=true starts no further one.

    A diverged run is a result.
    """
    return any(
        report["code"] and report["status"] != "diverged" and not report["skipped"]
        for report in each_report(sweep)
    )


class Sweep:
    """A sweep that this process runs. A thread prints each job that has ended. config: of the sweep."""

    def __init__(self, config: DictConfig) -> None:
        self.config, self.folder = config, Path(config.hydra.sweep.dir)
        self.failed = 0  # jobs that did not complete
        self.shown: dict[int, Report] = {}  # by the number of the job
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.expect(total_jobs(config.hydra))

    def expect(self, jobs: int) -> None:
        """Tell the number of jobs, of which a sweep in rounds knows only those of its first rounds."""
        self.total, self.at_once = jobs, on_all_machines(self.config.hydra, jobs)

    def start(self, what: str, jobs: int) -> None:
        """Print what begins, and from now on the progress."""
        how = f", {self.at_once} at once"
        if cluster.launcher_of(self.config.hydra) is not None:
            how = f" by submitit, which print into {self.folder / cluster.SUBMITTED}"
        print(f"{what} of {how_many(jobs, 'job')}{how}", flush=True)
        if not self.thread.is_alive():
            self.thread.start()

    def stop(self) -> None:
        """Print what has ended since the last look."""
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        self._look()

    def end(self) -> None:
        """Print the table, and remove the sweep's folder if the printed lines contain all that is in it."""
        self.stop()
        from mpx.render.sweep import print_sweep  # rich, only when there is something to print

        reports = sorted(each_report(self.folder), key=lambda report: report["job"])
        begun = [
            report | {"record": record_of(report)} for report in reports if report["status"] != NOT_STARTED
        ]
        searches = self.config.hydra.sweeper.get("n_trials") is not None  # and may end early
        lost = 0 if searches else max(0, self.total - len(reports))
        self.failed = lost + sum(report["code"] != 0 for report in reports)
        print_sweep(begun, len(reports) - len(begun), self.config.get("until"))
        keep_found(self.config, begun)
        if lost:
            again = "The same command runs them, or takes their results."
            print(f"{how_many(lost, 'job')} left no report. {again}", file=sys.stderr)
        elif all(report["code"] in (0, MISTAKE) for report in reports):
            self.remove()

    def remove(self) -> None:
        """Remove the sweep's folder, and those above it if they are empty."""
        # A job of Slurm that is just ending may still write there.
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.folder.parent, self.folder.parents[1]):
            with suppress(OSError):  # not empty
                folder.rmdir()

    def _watch(self) -> None:
        while not self.over.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        for report in sorted(each_report(self.folder), key=lambda report: report["job"]):
            if report["job"] not in self.shown and report["status"] != NOT_STARTED:
                self.shown[report["job"]] = report
                self._show(report)

    def _show(self, report: Report) -> None:
        """For example `job 7 completed in 41 s: 8 of 100 done, 0 failed, 92 left, about 15 min to go`."""
        if report["code"]:
            print(f"job {report['job']} {report['status']}: {report['line']}", file=sys.stderr, flush=True)
        ended = self.shown.values()
        done, left = sum(report["code"] == 0 for report in ended), self.total - len(ended)
        failed = sum(bool(report["code"]) and report["status"] != IN_USE for report in ended)
        how = f"{report['status']} in {span(report['seconds'])}"
        if report["skipped"]:
            how = f"was already {report['status']}"
        whole = [report["seconds"] for report in ended if report["status"] in DONE and not report["skipped"]]
        to_go = (
            f", about {span(mean(whole) * left / min(self.at_once, left))} to go"
            if whole and left > 0
            else ""
        )
        print(
            f"job {report['job']} {how}: {done} of {self.total} done, {failed} failed, {left} left{to_go}",
            flush=True,
        )


running: list[Sweep] = []  # the one sweep of this process, if there is one


class Summary(Callback):
    """Hydra's callback: checks a sweep and begins its progress before the first job, and prints the table
    after the last."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with errors_in_one_line():  # Hydra would only log an exception as a warning and go on
            check_sweep(config)
            folder = Path(config.hydra.sweep.dir)
            shutil.rmtree(folder, ignore_errors=True)  # a killed sweep whose process had the same id left it
            with below_output_dir(folder):
                folder.mkdir(parents=True, exist_ok=True)
        running.append(Sweep(config))
        if config.get("until") is None:
            running[-1].start("sweep", running[-1].total)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        running[-1].end()


def record_of(report: Report) -> dict[str, Any]:
    """The record of a job's run; empty where it has none."""
    return (read_result(Path(report["folder"])) if report["folder"] else None) or {}


def keep_found(config: DictConfig, reports: list[dict[str, Any]]) -> None:
    """Print what a search has found, and keep the file in the study's folder.

    config: of the sweep; any other has found nothing.
    """
    if config.hydra.sweeper.get("n_trials") is None:
        return
    from mpx.render.sweep import print_found

    file, kept = Path(config.hydra.sweep.dir) / FOUND, Path(config.output_dir) / config.study / FOUND
    if not file.is_file():  # no trial has completed
        OmegaConf.save({"name": "optuna", "solutions": []}, file)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, kept)
    completed = [report for report in reports if report["status"] == "completed"]
    results: Any = OmegaConf.to_object(OmegaConf.load(file))
    print_found(results, kept, completed)


@contextmanager
def to_the_end() -> Iterator[None]:
    """End a sweep also where an error keeps Hydra from calling on_multirun_end: submitit's for a job that it
    could not submit or that vanished, Optuna's for a search in which no trial completed. Where the sweep ends
    before its table, by a mistake or a signal, its folder goes: the same command goes on without it."""
    try:
        yield
    except BaseException as error:
        sweep = running[-1] if running else None
        lost = cluster.submission_error(error)
        if sweep is None or not isinstance(error, Exception) or (lost is None and str(error) != NO_TRIALS):
            if sweep is not None and not (sweep.folder / cluster.SUBMITTED).exists():
                sweep.stop()
                sweep.remove()
            raise
        if lost is not None and not any(sweep.folder.glob("job*")):
            sweep.remove()
            raise UserError(f"hydra.launcher: no job could be submitted: {lost}") from error
        if lost is not None:
            more = "Other jobs go on. The same command finishes the sweep."
            print(f"a job ended before it wrote a record: {lost} {more}", file=sys.stderr)
        sweep.end()


def exit_code() -> int:
    """Of the sweep: 1 if any job failed."""
    return int(any(sweep.failed for sweep in running))
