"""Run the jobs of a sweep. Each is a process with its own plain command line, which can be repeated by hand.

`Local` is Hydra's launcher for this machine: threads wait for the jobs, each with a GPU from a queue.
submitit calls `start_child` in a process of the cluster.
"""

import json
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from mpx.private.hydra import register_plugin
from mpx.runs.signals import TERMINATED
from mpx.settings.front_door import words_of
from mpx.sweep import cluster
from mpx.sweep.checks import TARGET, at_once
from mpx.sweep.progress import FILE, LOG, reported
from mpx.system.environment_variables import SWEEP_REPORT, VISIBLE, for_run, show_users_gpus
from mpx.system.launch import launch, this_python
from mpx.system.machine import usable_cores, visible_gpus
from mpx.system.whole_file import write_whole

# Elsewhere forking PyTorch is not safe.
CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def start(words: list[str], environment: dict[str, str], log: Path) -> BaseProcess:
    """Start `python -m mpx.train *words` on this machine; on Linux as a fork of a process that has done the
    imports (preload.py). A fresh process spends five seconds on them, a third of a job of ten seconds.

    log: the file for its output.
    """
    CONTEXT.set_forkserver_preload(["mpx.sweep.preload"])
    process = CONTEXT.Process(target=_become, args=(words, environment, log))
    process.start()
    return process


def _become(words: list[str], environment: dict[str, str], log: Path) -> None:
    """Be the job, in a session of its own: Ctrl-C in a terminal reaches it once, through the sweep."""
    os.setsid()
    # else its loaders start their workers by CONTEXT, too, and each of these imports PyTorch first
    multiprocessing.set_start_method(None, force=True)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.argv[1:] = words
    sys.modules.pop("mpx.train", None)  # the script mpx-train imports it, and runpy would warn
    runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)


def start_child() -> None:
    """In a process of submitit's: run this job of the sweep."""
    config: Any = HydraConfig.get()  # a DictConfig, which Hydra annotates as its schema
    if cluster.launcher_of(config) == cluster.LOCAL:
        show_users_gpus()
    folder = Path(config.runtime.output_dir).resolve()
    run_job(config, folder, {}, cluster.run, reports=launch().rank == 0)


def run_job(
    config: DictConfig, job: Path, environment: dict[str, str],
    run: Callable[[list[str], dict[str, str], Path], int], *, reports: bool = True,
) -> None:  # fmt: skip
    """Run one job, and complete its report. A failure is reported, not raised, so that the other jobs go on.

    config: Hydra's. job: its folder. environment: the variables that it has beside those of this process.
    run: takes the words after `python -m mpx.train`, the environment and the file for the output; returns the
    exit code, -N when signal N ended it. reports: of several processes of the job, this is the first.
    """
    number, overrides = int(job.name.removeprefix("job")), words_of(config)
    known: dict[str, Any] = {"job": number, "overrides": overrides}
    job.mkdir(parents=True, exist_ok=True)
    if reports:
        (job / FILE).unlink(missing_ok=True)  # a requeued job begins again
    began = time.monotonic()
    environment = os.environ | for_run(SWEEP_REPORT, job / FILE) | environment
    code = run(words_of_job(config, overrides), environment, job / LOG)
    if not reports:
        return
    report = reported(job, code) | known | {"code": code, "seconds": time.monotonic() - began}
    if report["folder"] and not report["skipped"]:
        keep_log(job / LOG, Path(report["folder"]) / LOG)
    write_whole(job / FILE, json.dumps(report))  # with the job's number the sweep counts it


def keep_log(log: Path, kept: Path) -> None:
    """Move a job's output to its run. A run that was continued has that of its first part."""
    with open(log, "rb") as output, open(kept, "ab") as file:
        shutil.copyfileobj(output, file)
    log.unlink()


def words_of_job(config: DictConfig, overrides: list[str]) -> list[str]:
    """The command line of a job, after `python -m mpx.train`. config: Hydra's."""
    added = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    return [*(["--config-dir", added[0]] if added else []), *overrides]


class Local(Launcher):
    """n_jobs: hydra.launcher.n_jobs, which `at_once` reads."""

    def __init__(self, n_jobs: int) -> None:
        self.running: set[BaseProcess] = set()
        self.lock = Lock()  # of the processes, and of Hydra, which composes one configuration at a time
        self.ending: int | None = None  # the signal that ends the sweep: no further job starts

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config
        self.gpus: Queue[str] = Queue()  # for each job at a time, the one that it gets
        os.environ.update(config.hydra.job.env_set)
        if "-P" in this_python():  # otherwise preload.py would import a folder called mpx or torch from here
            os.environ["PYTHONSAFEPATH"] = "1"
        visible, self.jobs = visible_gpus(), at_once(config.hydra)
        for number in range(self.jobs if len(visible) > 1 else 0):
            self.gpus.put(visible[number % len(visible)])
        if self.jobs > 1:  # with more threads than cores, PyTorch is many times slower
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // self.jobs)))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        before = {
            number: signal.signal(number, self._interrupt)
            for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        # It waits for the jobs, also after an interrupt.
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(self._run, job_overrides, numbers))  # raises what a thread has raised
        for number, handler in before.items():
            signal.signal(number, handler)
        if self.ending is not None:
            raise KeyboardInterrupt if self.ending == signal.SIGINT else SystemExit(TERMINATED)
        return [JobReturn(overrides=words, status=JobStatus.COMPLETED) for words in job_overrides]

    def _run(self, overrides: Sequence[str], number: int) -> None:
        """In a thread: one job, from beginning to end."""
        if self.ending is not None:
            return
        with self.lock:
            config = self.loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            hydra = config.pop("hydra")
        job = Path(self.config.hydra.sweep.dir).resolve() / f"job{number}"
        gpu = self.gpus.get() if one_device(config.trainer) and not self.gpus.empty() else None
        try:
            run_job(hydra, job, {VISIBLE: gpu} if gpu else {}, self._process)
        finally:
            if gpu is not None:
                self.gpus.put(gpu)

    def _process(self, words: list[str], environment: dict[str, str], log: Path) -> int:
        # An exit code can be read once, and starting a process reads those of the others that have ended: one
        # thread at a time.
        with self.lock:
            process = start(words, environment, log)
            self.running.add(process)
        if self.ending is not None:  # since the job has been started
            process.terminate()
        wait([process.sentinel])
        with self.lock:
            process.join()
            self.running.discard(process)
        return process.exitcode or 0

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
    """Let hydra/launcher=local choose this launcher."""
    register_plugin(Local, TARGET)
