"""Begin and end a sweep, in the process that the user started."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from mpx import ctrl_c
from mpx.errors import MISTAKE, UserError
from mpx.settings.front_door import errors_in_one_line, words_of
from mpx.settings.values import check_value, key_of
from mpx.sweep import cluster, warm
from mpx.sweep.alone import measure_alone
from mpx.sweep.follow import Follower
from mpx.sweep.job_report import NOT_STARTED, read_reports
from mpx.sweep.mistakes import refuse_mistakes
from mpx.sweep.objectives import check_direction
from mpx.sweep.orphan import owned, remove_left
from mpx.sweep.progress import SIZE, read_total, write_size
from mpx.sweep.share import check_sharing
from mpx.sweep.size import grid, on_all_machines, total_jobs

SUBDIR = "job${hydra.job.num}"  # in conf/train.yaml, too
SEARCH = "hydra_plugins.hydra_optuna_sweeper"
FOUND = "optimization_results.yaml"  # hydra-optuna-sweeper writes it to the sweep's folder
NO_TRIALS = "No trials are completed yet."  # Optuna's error


class Summary(Callback):
    """Makes the sweep's folder before the first job, and prints a table of all jobs after the last one."""

    folder: Path | None = None  # of the sweep that this process started
    made: tuple[Path, ...] = ()  # parents of the folder that did not exist before
    owned: BaseFileLock | None = None  # the lock of the folder
    failed = 0  # jobs that did not complete
    config: DictConfig | None = None
    follower: Follower | None = None  # where the workers print elsewhere

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with errors_in_one_line():  # Hydra would only log an exception as a warning and go on
            check_value("output_dir", config.output_dir)
            folder = Path(config.hydra.sweep.dir)
            made = tuple(path for path in folder.parents[:2] if not os.path.exists(path))
            _check_folder(config.hydra.sweep, folder, Path(config.output_dir))
            if config.hydra.job.chdir:
                raise UserError("hydra.job.chdir=true: jobs would write into their folders of the sweep, which it removes. Leave it out.")
            shutil.rmtree(folder, ignore_errors=True)  # a killed sweep whose process had the same id left it
            _check_launcher(config.hydra.launcher)
            check_sharing(config)
            cluster.check_launcher(config.hydra)
            _check_batches(config.hydra.sweeper)
            check_direction(config.hydra.sweeper)
            _check_one_output_dir(config.hydra)
            if (jobs := total_jobs(config.hydra)) == 0:
                given = " ".join(words_of(config.hydra))
                raise UserError(f"{given} gives no job: of range(), glob() or choice() one has no values. Write the values, as seed=0,1,2.")
            refuse_mistakes(config)
            ctrl_c.raises()
            write_size(folder, jobs, on_all_machines(config.hydra, jobs))
            Summary.owned = owned(folder)
            remove_left(folder)
        Summary.folder, Summary.made, Summary.config = folder, made, config
        if config.get("until") is None:
            cluster.announce(config.hydra, jobs, "sweep")
        if cluster.launcher_of(config.hydra) is not None:
            Summary.follower = Follower(folder)
        logging.getLogger(SEARCH).setLevel(logging.ERROR)  # the job's own line is more informative than this warning

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Drop what nobody reads: Hydra keeps the configurations of all jobs until the sweep ends, 147 KiB each."""
        job_return.cfg = job_return.hydra_cfg = None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if Summary.follower is not None:
            Summary.follower.stop()
        reports = read_reports(Summary.folder)
        lost = _expected(config.hydra.sweeper) - len(reports)
        Summary.failed = lost + sum(report["code"] != 0 for report in reports)
        if config.gpu_share > 1 and not (config.fail_fast and Summary.failed):
            Summary.failed += measure_alone(config, reports, Summary.folder)
        from mpx.render.sweep import print_found, print_sweep  # rich, only when there is something to print

        begun = [report for report in reports if report["status"] != NOT_STARTED]
        print_sweep(begun, len(reports) - len(begun), config.get("until"))
        if (found := Summary.folder / FOUND).is_file():
            kept = Path(config.output_dir) / config.study / FOUND
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, kept)
            completed = [report for report in reports if report["status"] == "completed"]
            print_found(OmegaConf.to_object(OmegaConf.load(found)), kept, completed)
        if lost:
            jobs, them = (f"{lost} more jobs have", "them") if lost > 1 else ("1 more job has", "it")
            print(f"{jobs} no report; the same command says what became of {them}", file=sys.stderr)
        elif all(report["code"] in (0, MISTAKE) for report in reports):  # the printed lines contain all information
            shutil.rmtree(Summary.folder, ignore_errors=True)  # a job of Slurm that is just ending may still write there


def _expected(sweeper: DictConfig) -> int:
    """The number of jobs that have begun, or of all jobs of a grid: a search may end early."""
    begun = len(list(Summary.folder.glob("job*")))
    return begun if sweeper.get("n_trials") is not None else max(begun, read_total(Summary.folder))


@contextmanager
def to_the_end() -> Iterator[None]:
    """End a sweep in which an error keeps Hydra from calling on_multirun_end: submitit's for a job that it could not submit or that
    vanished, Optuna's for a search for one objective in which no trial completed."""
    try:
        yield
    except Exception as error:
        if Summary.config is not None and (line := cluster.submission_error(error)) is not None:
            return _end_without(line)
        if Summary.config is None or str(error) != NO_TRIALS:
            raise
        OmegaConf.save({"name": "optuna", "solutions": []}, Summary.folder / FOUND)
        Summary().on_multirun_end(Summary.config)


def _end_without(line: str) -> None:
    """End a sweep that lacks a job. line: what submitit says. Raises UserError if there is none at all."""
    if not any(Summary.folder.glob("job*")):
        shutil.rmtree(Summary.folder, ignore_errors=True)
        raise UserError(f"hydra.launcher: no job could be submitted: {line}")
    print(f"a job ended before it wrote a record: {line} Other jobs go on. The same command finishes the sweep.", file=sys.stderr)
    Summary().on_multirun_end(Summary.config)
    Summary.failed += 1  # which may have no folder


def _check_folder(sweep: DictConfig, folder: Path, output_dir: Path) -> None:
    """Refuse a folder of the user's, since that of a sweep is removed whole. sweep: Hydra's settings."""
    filled = os.path.isdir(folder) and any(folder.iterdir()) and not (folder / SIZE).is_file()
    if filled or output_dir.resolve().is_relative_to(folder.resolve()):
        holds = "is not empty" if filled else f"holds output_dir={output_dir}"
        raise UserError(
            f"hydra.sweep.dir={folder} {holds}, and a sweep removes its folder. Leave it out, or name a folder that is not there."
        )
    if (given := OmegaConf.to_container(sweep, resolve=False)["subdir"]) != SUBDIR:
        raise UserError(f"hydra.sweep.subdir={given}: mpx names the folders of a sweep's jobs. Leave it out.")


def _check_launcher(launcher: DictConfig) -> None:
    jobs = launcher.get("n_jobs", 1)
    if type(jobs) is not int or jobs == 0:
        raise UserError(f"hydra.launcher.n_jobs={jobs} must be a whole number of at least 1, or -1 for as many jobs as cores.")


def _check_one_output_dir(hydra: DictConfig) -> None:
    """The sweep's folder lies there, in which jobs leave their reports."""
    words = [word for word in words_of(hydra) if key_of(word) == "output_dir"]
    if any(len(values) > 1 for values in grid({}, words)):
        raise UserError(f"{words[-1]}: a sweep has one output_dir. Start one sweep for each, or give each a study=.")


def _check_batches(sweeper: DictConfig) -> None:
    most = sweeper.get("max_batch_size")
    if most is not None and (type(most) is not int or most < 1):
        raise UserError(f"hydra.sweeper.max_batch_size={most} must be a whole number of at least 1, or null.")


def finish() -> int:
    """The sweep's exit code: 1 if any job failed."""
    return 1 if Summary.failed else 0


def tidy() -> None:
    """End the starter, and remove the sweep's empty folders after a mistake that stopped the sweep before its first job."""
    warm.end()
    if Summary.owned is not None:
        Summary.owned.release()
    if Summary.folder is None or any(Summary.folder.glob("job*")) or (Summary.folder / cluster.SUBMITTED).exists():
        return
    shutil.rmtree(Summary.folder, ignore_errors=True)
    for path in (Summary.folder.parent, *Summary.made):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
