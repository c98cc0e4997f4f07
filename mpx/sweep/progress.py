"""What a sweep says: a line for each run that has ended, and a table of all settings at its end.

Processes share no memory, and the cluster's run elsewhere. So each job leaves a report in its folder inside
the sweep's, `outputs/_sweep/<machine>-<process id>/job<N>/report.json`; what it measured is in its own
result.json.
"""

import itertools
import json
import math
import shlex
import shutil
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from mpx.errors import MISTAKE, UserError
from mpx.runs.folder import DONE, read_result
from mpx.settings.front_door import errors_in_one_line
from mpx.settings.values import key_of
from mpx.sweep import cluster
from mpx.sweep.checks import at_once, check_sweep, grid_of
from mpx.system.environment_variables import report_file
from mpx.system.printing import how_many, span
from mpx.system.whole_file import below_output_dir, write_whole

FILE = "report.json"  # in the job's folder
LOG = "log.txt"  # what a job prints: in the run's folder, and in the job's while it runs
IN_USE = "in use"  # of a job whose run another process trains
INTERVAL = 0.5  # seconds between two looks for new reports
Report = dict[str, Any]


def report(status: str, folder: Path | None, line: str, *, skipped: bool = False) -> None:
    """Tell the sweep, or the caller of mpx.run, how this run ended. skipped: the run existed and was left as
    it is.

    Where the report cannot be written, as on a full disk, the sweep goes by the exit code.
    """
    if (file := report_file()) is not None:
        with suppress(OSError):
            ended = {"status": status, "folder": str(folder) if folder else None, "line": line}
            write_whole(file, json.dumps(ended | {"skipped": skipped}))


def reported(job: Path, code: int) -> Report:
    """The report that the job has written, or one made from its exit code. job: its folder."""
    if (job / FILE).is_file():
        return json.loads((job / FILE).read_text())
    line = f"ended with exit code {code} before it wrote a record; {job / LOG} has its output"
    if code < 0:
        line = f"killed by signal {-code}; the same command continues it"
    return {"status": "failed", "folder": None, "line": line, "skipped": False}


def each_report(sweep: Path, known: Collection[int] = ()) -> Iterator[Report]:
    """The reports of all jobs that have ended, without those of the numbers in `known`: reading hundreds of
    them again and again would take time of the cores on which jobs are timed."""
    for file in sweep.glob(f"job*/{FILE}"):
        if int(file.parent.name.removeprefix("job")) in known:
            continue
        with suppress(FileNotFoundError):  # the job has just begun again
            report = json.loads(file.read_text())
            if "job" in report:  # its number; without one, the job is still ending
                yield report


class Sweep:
    """A sweep that this process runs. A thread prints each job that has ended. config: of the sweep."""

    def __init__(self, config: DictConfig) -> None:
        self.config, self.folder = config, Path(config.hydra.sweep.dir)
        self.failed = 0  # jobs that did not complete
        values = grid_of(config.hydra)
        self.total = math.prod(map(len, values))  # a sweep in rounds learns it round by round
        self.swept = {key_of(words[0]) for words in values if len(words) > 1}  # keys that differ between jobs
        self.shown: dict[int, Report] = {}  # by the number of the job
        self.lock = threading.Lock()  # of `shown`
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Print what begins, and from now on each job that has ended."""
        together = min(self.total, at_once(self.config.hydra))
        cost = training_to_come(self.config)
        took = f", about {span(cost / together)} of training" if cost else ""
        output = f"the output of each is in its folder, {LOG}"
        print(f"{how_many(self.total, 'run')}, {together} at once{took}; {output}", flush=True)
        self.thread.start()

    def stop(self) -> None:
        """Print what has ended since the last look, and look no more."""
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        self.look()

    def end(self) -> None:
        """Print the table, and remove the sweep's folder if the printed lines contain all that is in it."""
        self.stop()
        from mpx.render.sweep import print_sweep  # rich, only when there is something to print

        begun = [with_record(self.shown[number]) for number in sorted(self.shown)]
        self.failed = sum(report["code"] != 0 for report in begun)
        print_sweep(begun, self.swept, self.config.get("until"))
        if all(report["code"] in (0, MISTAKE) for report in begun):
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
            self.look()

    def look(self) -> None:
        """Print what has ended since the last look."""
        with self.lock:
            for report in sorted(each_report(self.folder, self.shown), key=lambda report: report["job"]):
                self.shown[report["job"]] = report
                self._show(report)

    def _show(self, report: Report) -> None:
        """For example `2/6 lstm amp-2of4 seed 1  0.9861  2,860 samples/s  12 s, about 50 s to go`."""
        from mpx.render.sweep import line_of

        ended, left = self.shown.values(), self.total - len(self.shown)
        whole = [report["seconds"] for report in ended if report["status"] in DONE and not report["skipped"]]
        line = f"{len(ended)}/{self.total} {line_of(with_record(report), self.swept)}"
        if whole and left > 0 and not report["code"]:
            to_go = span(mean(whole) * left / min(at_once(self.config.hydra), left))
            line += f", about {to_go} {'to go' if self.config.get('until') is None else 'to the look'}"
        print(line, file=sys.stderr if report["code"] else sys.stdout, flush=True)


def training_to_come(config: DictConfig) -> float | None:
    """The seconds of training of the jobs without a result, by runs of the study whose command differs in the
    seed alone. None where a setting has none, or the jobs are not known yet.
    """
    if config.get("until") is not None:
        return None
    from mpx.compare.collect import collect
    from mpx.compare.words import portable

    runs, _ = collect(Path(config.output_dir) / config.study)
    trained = {
        frozenset(shlex.split(command)[3:]): run.time_to_train_s  # after python -m mpx.train
        for run in runs
        if (command := run.environment.get("command"))
    }
    took = {without_seed(words): seconds for words, seconds in trained.items()}
    commands = [portable(shlex.join(words)) for words in itertools.product(*grid_of(config.hydra))]
    jobs = {frozenset(shlex.split(command)) for command in commands} - trained.keys()
    costs = [took.get(without_seed(words)) for words in jobs]
    return None if None in costs else sum(filter(None, costs))


def without_seed(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word for word in words if not word.startswith("seed="))


running: list[Sweep] = []  # the one sweep of this process, if there is one


class Summary(Callback):
    """Hydra's callback: checks a sweep and begins its progress before the first job, and prints the table
    after the last."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with errors_in_one_line():  # Hydra would only log an exception as a warning and go on
            check_sweep(config)
            sweep = Sweep(config)
            with below_output_dir(sweep.folder):
                shutil.rmtree(sweep.folder, ignore_errors=True)  # of a killed one with the same process id
                sweep.folder.mkdir(parents=True, exist_ok=True)
        running.append(sweep)
        if config.get("until") is None:
            running[-1].start()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        running[-1].end()


def with_record(report: Report) -> Report:
    """The report with the record of the job's run; None where it has none."""
    return report | {"record": read_result(Path(report["folder"])) if report["folder"] else None}


@contextmanager
def to_the_end() -> Iterator[None]:
    """Where a sweep ends before its table, by a mistake or a signal, remove its folder: the same command goes
    on without it. Submitted jobs go on, and use theirs."""
    try:
        yield
    except BaseException as error:
        if running:
            running[-1].stop()
            if not (running[-1].folder / cluster.SUBMITTED).exists():
                running[-1].remove()
        if (lost := cluster.submission_error(error)) is not None:
            more = "Jobs in the queue go on, and the same command finishes the sweep"
            raise UserError(f"hydra.launcher: {lost}. {more}.") from error
        raise


def exit_code() -> int:
    """Of the sweep: 1 if any job failed."""
    return int(any(sweep.failed for sweep in running))
