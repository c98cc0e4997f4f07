"""`hydra/launcher=joblib`: several jobs of a sweep at once on this machine. A thread waits for each.

The plugin of Hydra that has this launcher's name waits for jobs in worker processes. joblib kills its workers, and all that they have
started, with SIGKILL once Ctrl-C ends the sweep or one worker, so that no job could write its record.
"""

import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock, Semaphore
from typing import Any

from hydra.core.utils import JobReturn, run_job
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from mpx.private.hydra import register_plugin
from mpx.runs.signals import TERMINATED
from mpx.sweep import child
from mpx.sweep.objectives import Objectives
from mpx.sweep.size import at_once

TARGET = "hydra_plugins.mpx.Parallel"  # of conf/hydra/launcher/joblib.yaml


class Parallel(Launcher):
    """Its settings are hydra.launcher.n_jobs, and others that only joblib has, if the plugin of this name is installed."""

    def __init__(self, **settings: Any) -> None:
        self.running: set[child.Job] = set()
        self.begun: set[Future[Objectives]] = set()  # of the jobs that have not ended
        self.ending = False  # the sweep is interrupted: no further job starts
        self.lock = Lock()  # of these two

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config
        self.free = Semaphore(at_once(config.hydra))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        with ThreadPoolExecutor(at_once(self.config.hydra)) as self.pool:
            try:
                returned = [self._begin(overrides, number) for number, overrides in enumerate(job_overrides, initial_job_idx)]
                for job in returned:
                    job.return_value = job.return_value.result()
            except BaseException:
                self._end()
                raise
        return returned

    def _begin(self, overrides: Sequence[str], number: int) -> JobReturn:
        """Begin one job as soon as there is a place for it. Returns what Hydra expects of a job, with a Future as its value."""
        self.free.acquire()
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        keys = {"job_dir_key": "hydra.sweep.dir", "job_subdir_key": "hydra.sweep.subdir"}
        return run_job(self._submit, config, hydra_context=self.context, configure_logging=False, **keys)

    def _submit(self, cfg: DictConfig) -> Future[Objectives]:
        future = self.pool.submit(child.job_of(cfg, self._wait))  # reads Hydra's configuration, which only this thread may
        self.begun.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Objectives]) -> None:
        self.begun.discard(future)
        self.free.release()

    def _wait(self, job: child.Job) -> int:
        """Called in the job's thread. Returns the job's exit code. Raises KeyboardInterrupt if the sweep is interrupted."""
        with self.lock:
            self.running.add(job)
            if self.ending:
                job.terminate()
        code = job.wait()
        with self.lock:
            self.running.discard(job)
        if self.ending:
            raise KeyboardInterrupt
        return code

    def _end(self) -> None:
        """End all jobs, each of which writes its record. Who interrupts again tells them again: one that hangs then ends at once."""
        while True:
            try:
                with self.lock:
                    self.ending = True
                    for job in self.running:
                        job.terminate()
                wait(list(self.begun))
                return
            except (KeyboardInterrupt, SystemExit):
                continue


def register() -> None:
    """Let hydra/launcher=joblib choose this launcher."""
    register_plugin(Parallel, TARGET)
