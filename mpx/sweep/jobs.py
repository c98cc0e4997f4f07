"""Run the jobs of a sweep. Each is a process with its own plain command line, which can be repeated by hand.

`Local` is Hydra's launcher for this machine: threads wait for the jobs, each with a GPU from a queue.
submitit calls `start_child` in a process of the cluster.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from mpx.compare.run import judged_by_record
from mpx.private.hydra import register_plugin
from mpx.runs.folder import read_result
from mpx.runs.signals import TERMINATED
from mpx.settings.front_door import words_of
from mpx.sweep import cluster
from mpx.sweep.checks import TARGET, at_once
from mpx.sweep.progress import FILE, NOT_STARTED, conclude, must_stop, reported
from mpx.system import environment_variables
from mpx.system.environment_variables import VISIBLE
from mpx.system.launch import launch, this_python
from mpx.system.machine import usable_cores, visible_gpus

Objectives = tuple[float, float] | float | None
# Elsewhere forking PyTorch is not safe.
FORKS = multiprocessing.get_context("forkserver") if sys.platform == "linux" else None


class Process(Protocol):
    """What a job's process is to the sweep: subprocess.Popen, or a fork."""

    def wait(self) -> int: ...

    def terminate(self) -> None: ...


class Fork:
    """`python -m mpx.train *words` as a fork of a process that has done the imports (preload.py).

    A fresh process spends five seconds on these imports, a third of a job of ten seconds.
    """

    def __init__(self, words: list[str], environment: dict[str, str], forks: ForkServerContext) -> None:
        forks.set_forkserver_preload(["mpx.sweep.preload"])
        self.process = forks.Process(target=_become, args=(words, environment))
        self.process.start()

    def wait(self) -> int:
        """The exit code; -N when signal N ended it."""
        self.process.join()
        return self.process.exitcode or 0

    def terminate(self) -> None:
        self.process.terminate()


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Be the job, in a session of its own: Ctrl-C in a terminal reaches it once, through the sweep."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    sys.modules.pop("mpx.train", None)  # the script mpx-train imports it, and runpy would warn
    runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)


def start(command: list[str], environment: dict[str, str]) -> Process:
    """Start a job on this machine."""
    if FORKS is None:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    return Fork(command[command.index("mpx.train") + 1 :], environment, FORKS)


def start_child(cfg: DictConfig) -> Objectives:
    """In a process of submitit's: run this job of the sweep.

    Returns what a search maximises; None without a result.
    """
    config: Any = HydraConfig.get()  # a DictConfig, which Hydra annotates as its schema
    if cluster.launcher_of(config) == cluster.LOCAL:
        environment_variables.show_users_gpus()
    folder = Path(config.runtime.output_dir).resolve()
    return run_job(cfg, config, folder, {}, cluster.run, reports=launch().rank == 0)


def run_job(
    cfg: DictConfig, config: DictConfig, job: Path, environment: dict[str, str],
    run: Callable[[list[str], dict[str, str]], int], *, reports: bool = True,
) -> Objectives:  # fmt: skip
    """Run one job, and complete its report. A failure is reported, not raised, so that the other jobs go on.

    config: Hydra's. job: its folder. environment: the variables that it has beside those of this process.
    run: takes a command line and its environment; returns the exit code, -N when signal N ended it. reports:
    of several processes of the job, this is the first.
    """
    number, overrides = int(job.name.removeprefix("job")), words_of(config)
    known: dict[str, Any] = {"job": number, "overrides": overrides}
    job.mkdir(parents=True, exist_ok=True)
    if cfg.fail_fast and must_stop(job.parent):
        held = {"status": NOT_STARTED, "line": "fail_fast=true", "folder": None, "skipped": True}
        conclude(job, held | known | {"code": None, "seconds": 0.0})
        return None
    if reports:
        (job / FILE).unlink(missing_ok=True)  # a requeued job begins again
        # At once, since threads print, too.
        print(f"job {number}: {' '.join(overrides)}\n", end="", flush=True)
    began = time.monotonic()
    environment = os.environ | environment_variables.for_job(job / FILE) | environment
    words = command(config, overrides, quiet=at_once(config) > 1 and cfg.trainer.progress == "auto")
    code = run(words, environment)
    if not reports:
        return None
    report = reported(job, code) | known | {"code": code, "seconds": time.monotonic() - began}
    conclude(job, report)
    return objectives(report, config.sweeper.get("direction"))


def objectives(report: dict[str, Any], direction: Any) -> Objectives:
    """(accuracy, samples per second) if the sweeper has two directions, accuracy if it has one, None without
    a result.

    The accuracy is the run's metric on the validation split, because a search must not see the test split;
    negative if it must fall.
    """
    record = read_result(Path(report["folder"])) if report["status"] == "completed" else None
    if record is None:
        return None
    judged = judged_by_record(record)
    value = record["metrics"].get(judged.name.replace("test/", "val/"))
    if value is None:  # the job ended before its first validation
        return None
    accuracy = judged.sign * value
    several = isinstance(direction, Sequence) and not isinstance(direction, str)
    return (accuracy, record["speed"]["train_samples_per_s"]) if several else accuracy


def command(config: DictConfig, overrides: Sequence[str], *, quiet: bool) -> list[str]:
    """The command line of a job.

    config: Hydra's. quiet: print no line per epoch, since those of several jobs would mix.
    """
    added = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    words = [
        *(["--config-dir", added[0]] if added else []),
        *overrides,
        *(["trainer.progress=off"] if quiet else []),
    ]
    return [*this_python(), "mpx.train", *words]


class Local(Launcher):
    """settings: hydra.launcher.n_jobs, and those of joblib's, if the plugin of this name is installed."""

    def __init__(self, **settings: Any) -> None:
        self.running: set[Process] = set()
        self.lock = Lock()  # of `running`, and of Hydra, which composes one configuration at a time
        self.ending: int | None = None  # the signal that ends the sweep: no further job starts

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        self.gpus: Queue[str] = Queue()  # for each job at a time, the one that it gets
        os.environ.update(config.hydra.job.env_set)
        visible, jobs = visible_gpus(), at_once(config.hydra)
        for number in range(jobs if len(visible) > 1 else 0):
            self.gpus.put(visible[number % len(visible)])
        if jobs > 1:  # with more threads than cores, PyTorch is many times slower
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // jobs)))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        before = {
            number: signal.signal(number, self._interrupt)
            for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        # It waits for the jobs, also after an interrupt.
        with ThreadPoolExecutor(at_once(self.config.hydra)) as pool:
            values = list(pool.map(self._run, job_overrides, numbers))
        for number, handler in before.items():
            signal.signal(number, handler)
        if self.ending is not None:
            raise KeyboardInterrupt if self.ending == signal.SIGINT else SystemExit(TERMINATED)
        return [
            JobReturn(overrides=overrides, _return_value=value, status=JobStatus.COMPLETED)
            for overrides, value in zip(job_overrides, values, strict=True)
        ]

    def _run(self, overrides: Sequence[str], number: int) -> Objectives:
        """In a thread: one job, from beginning to end."""
        if self.ending is not None:
            return None
        with self.lock:
            config = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            hydra = config.pop("hydra")
        job = Path(self.config.hydra.sweep.dir).resolve() / f"job{number}"
        gpu = self.gpus.get() if one_device(config.trainer) and not self.gpus.empty() else None
        try:
            return run_job(config, hydra, job, {VISIBLE: gpu} if gpu else {}, self._process)
        except OSError as error:  # the sweep's folder is on a full disk, or the system has no process left
            why = f"job {number} has no report ({error}). The same command runs it, or takes its result."
            print(why, file=sys.stderr)
            return None
        finally:
            if gpu is not None:
                self.gpus.put(gpu)

    def _process(self, command: list[str], environment: dict[str, str]) -> int:
        process = start(command, environment)
        with self.lock:
            self.running.add(process)
        if self.ending is not None:  # since the job has been started
            process.terminate()
        code = process.wait()
        with self.lock:
            self.running.discard(process)
        return code

    def _interrupt(self, number: int, frame: Any) -> None:
        """The first signal lets each job save and end; a second one, passed on as well, ends them at once."""
        self.ending = number
        for process in list(self.running):
            process.terminate()


def one_device(trainer: DictConfig) -> bool:
    """Whether the job needs one GPU, no matter which.

    If several jobs run at once, `trainer.devices=auto` means one.
    """
    return trainer.accelerator != "cpu" and trainer.devices in (1, "auto")


def register() -> None:
    """Let hydra/launcher=local and joblib choose this launcher."""
    register_plugin(Local, TARGET)
