"""Start one job of a sweep in its own process, with its own plain command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from mpx import environment_variables
from mpx.launch import launch, this_python
from mpx.machine import usable_cores
from mpx.runs.folder import RESULT
from mpx.runs.name import named
from mpx.runs.signals import TERMINATED
from mpx.settings import check
from mpx.settings.front_door import typed, words_of
from mpx.settings.values import key_of
from mpx.sweep import cluster, progress, share, warm
from mpx.sweep.gpus import VISIBLE, claimed, visible_gpus
from mpx.sweep.job_report import FILE
from mpx.sweep.objectives import Objectives, objectives
from mpx.sweep.size import at_once


class Job(Protocol):
    """What subprocess.Popen and mpx.sweep.warm.WarmJob have in common."""

    def wait(self) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


Wait = Callable[[Job], int]  # returns the exit code; -N when signal N ended the job
_printing = Lock()  # jobs that threads wait for print whole lines


def start_child(cfg: DictConfig) -> Objectives:
    """Run this job of the sweep in its own process. A failure is reported, not raised, so that the other jobs go on.

    Returns the values that a search maximises; None for a job that did not complete.
    """
    return job_of(cfg, wait)()


def job_of(cfg: DictConfig, wait: Wait) -> Callable[[], Objectives]:
    """`start_child`, as a function that needs nothing of Hydra's present state. wait: waits for the job's process."""
    config = HydraConfig.get()
    folder = Path(config.runtime.output_dir).resolve()  # the job's folder, inside the sweep's
    if cluster.launcher_of(config) == cluster.LOCAL:
        environment_variables.show_users_gpus()
    environment = os.environ | environment_variables.for_job(folder / FILE)
    start = partial(_start, cfg, config, folder, environment, wait, will_train=_is_new(cfg, config))
    return partial(_unless_disk_is_full, config.job.num, start)


def _unless_disk_is_full(number: int, start: Callable[[], Objectives]) -> Objectives:
    try:
        return start()
    except OSError as error:  # the sweep's folder is on a full disk, or the system has no process left
        line = f"job {number} has no report ({error}). The same command runs it, or takes its result."
        print(line, file=sys.stderr, flush=True)
        return None


def _start(cfg: DictConfig, config: DictConfig, folder: Path, environment: dict[str, str], wait: Wait, *, will_train: bool) -> Objectives:
    if launch().rank > 0:  # the cluster starts several processes for this job, and the first one reports
        cluster.wait(subprocess.Popen(command(config, words_of(config), quiet=True), env=environment))
        return None
    known = {"job": config.job.num, "overrides": words_of(config)}
    if cfg.fail_fast and progress.must_stop(folder):
        progress.hold_back(folder, known)
        return None
    began = time.monotonic()
    with _sharing(cfg, config, folder, environment) as environment:
        quiet = at_once(config) > 1 and cfg.trainer.progress == "auto"  # the lines of several jobs would mix
        words = command(config, known["overrides"], quiet=quiet)
        with _printing:
            progress.begin(folder)
            print(f"job {known['job']}: {' '.join(known['overrides'])}", flush=True)
        if cluster.launcher_of(config) is not None:  # a task of the cluster has one job
            code = cluster.wait(subprocess.Popen(words, env=environment))
        else:
            code = wait(warm.start(words, environment, will_train=will_train))
    report = read(folder / FILE, code) | known | {"code": code, "seconds": time.monotonic() - began}
    warm.learn(report)
    with _printing:
        progress.end(folder, report)
    return objectives(report, config.sweeper.get("direction"))


def command(config: DictConfig, overrides: list[str], *, quiet: bool) -> list[str]:
    """The command line of a job: a single run, which shares its device with nobody. config: Hydra's. quiet: print no line per epoch."""
    added = [source.path for source in config.runtime.config_sources if source.provider == "command-line"]
    words = [word for word in overrides if key_of(word) != share.KEY]
    words += ["trainer.progress=off"] if quiet else []
    return [*this_python(), "mpx.train", *(["--config-dir", added[0]] if added else []), *words]


@contextmanager
def _sharing(cfg: DictConfig, config: DictConfig, folder: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The environment variables of the job, among those which share the cores and the GPUs at the same time."""
    if (jobs := at_once(config)) == 1:
        yield environment
        return
    # PyTorch on a CPU is many times slower with more threads than cores.
    environment = {"OMP_NUM_THREADS": str(max(1, usable_cores() // jobs))} | environment
    if cfg.gpu_share > 1:
        environment |= environment_variables.speed_is_measured("beside")
    gpus = visible_gpus(environment) if one_device(cfg.trainer) else []
    if len(gpus) < 2:
        yield environment
        return
    with claimed(folder.parent / "gpus", config.job.num, gpus) as gpu:
        yield environment | {VISIBLE: gpu}


def one_device(trainer: DictConfig) -> bool:
    """Whether the job needs one GPU, no matter which. If several jobs run at once, `trainer.devices=auto` means one."""
    return trainer.accelerator != "cpu" and trainer.devices in (1, "auto")


def _is_new(cfg: DictConfig, config: DictConfig) -> bool:
    """Whether the job will probably train: its settings are allowed, and no similar run is recorded."""
    try:
        check(cfg, typed(config))
        name = "-".join(named(cfg).values())
        return next((Path(cfg.output_dir) / cfg.study).glob(f"{name}*/seed{cfg.seed}/{RESULT}"), None) is None
    except Exception:  # the job itself reports what is wrong
        return False


def wait(child: Job) -> int:
    """Wait for a job, and pass Ctrl-C and SIGTERM on to it. Called in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return child.wait()
    except (KeyboardInterrupt, SystemExit):
        child.terminate()  # a job that the terminal has interrupted as well ignores it, and writes its record
        child.wait()
        raise


def read(file: Path, code: int) -> dict[str, Any]:
    """The job's report, or a report made from its exit code if it wrote none."""
    if file.is_file():
        return json.loads(file.read_text())
    line = (
        f"killed by signal {-code}; the same command continues it" if code < 0 else f"ended with exit code {code} before it wrote a record"
    )
    return {"status": "failed", "folder": None, "line": line, "record": {}, "skipped": False}
