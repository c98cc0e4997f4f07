"""`hydra/launcher=joblib`: several jobs of a sweep at once on this machine. A thread waits for each.

The plugin of Hydra that has this launcher's name waits for jobs in worker processes. joblib kills its workers, and all that they have
started, with SIGKILL once Ctrl-C ends the sweep or one worker, so that no job could write its record.
"""

import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import Any

from hydra.core.utils import JobReturn, run_job
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from mpx.private.hydra import register_plugin
from mpx.runs.signals import PATIENCE, TERMINATED
from mpx.sweep import child
from mpx.sweep.objectives import Objectives
from mpx.sweep.size import at_once

TARGET = "hydra_plugins.mpx.Parallel"  # of conf/hydra/launcher/joblib.yaml


class Parallel(Launcher):
    """Its settings are hydra.launcher.n_jobs, and others that only joblib has, if the plugin of this name is installed."""

    def __init__(self, **settings: Any) -> None:
        self.begun: set[Future[Objectives]] = set()  # of the jobs that have not ended
        self.running: set[child.Job] = set()  # their processes
        self.ended: float | None = None  # when the sweep was interrupted: no further job starts

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config
        self.free = Semaphore(at_once(config.hydra))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        with ThreadPoolExecutor(at_once(self.config.hydra)) as self.pool:  # waits for the begun jobs, also after an interrupt
            returned = [self._begin(overrides, number) for number, overrides in enumerate(job_overrides, initial_job_idx)]
            for job in returned:
                job.return_value = job.return_value.result()
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
        self.running.add(job)
        if self.ended is not None:  # `_interrupt` sets it before it looks for running jobs
            job.terminate()
        code = job.wait()
        self.running.discard(job)
        if self.ended is not None:
            raise KeyboardInterrupt
        return code

    def _interrupt(self, number: int, frame: Any) -> None:
        """The first signal ends the sweep: it tells all jobs to end, each of which writes its record.

        Further signals tell them again, which jobs ignore within PATIENCE. One that comes twice as late kills them: they hang in a library.
        """
        first, now = self.ended is None, time.monotonic()
        self.ended = now if first else self.ended
        for job in list(self.running):
            if now - self.ended > 2 * PATIENCE:
                job.kill()
            else:
                job.terminate()
        if first or not self.begun:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(TERMINATED)


def register() -> None:
    """Let hydra/launcher=joblib choose this launcher."""
    register_plugin(Parallel, TARGET)
