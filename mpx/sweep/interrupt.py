"""Ctrl-C in a sweep with worker processes of joblib: each running job writes its record before the sweep ends.

joblib kills its workers and all that they have started with SIGKILL, once Ctrl-C reaches the sweep's first process or one worker ends.
So the first process acts on Ctrl-C only when no job runs any more, and a worker waits for the jobs of the others.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Protocol

from filelock import BaseFileLock, FileLock

from mpx import channels
from mpx.runs.signals import PATIENCE, TERMINATED
from mpx.sweep.job_report import STARTED, is_locked, worker_of

LOCK = "running.lock"  # in the job's folder, held by the worker while its job runs
INTERVAL = 0.1  # seconds between two looks at the locks


class Job(Protocol):
    """What subprocess.Popen and mpx.sweep.warm.WarmJob have in common."""

    def wait(self) -> int: ...

    def terminate(self) -> None: ...


_told = False  # whether this worker is to start no further job
_job: Job | None = None  # which runs now


def act_after_jobs(sweep: Path) -> None:
    """Called in the first process before it starts workers. They inherit that Ctrl-C is blocked, also those that never get a job."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    signal.signal(signal.SIGINT, _Ending(sweep))
    resource_tracker.ensure_running()  # joblib starts it otherwise, and Python unblocks Ctrl-C when it does
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # the signal still needs a thread that does not block it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def act_at_once() -> None:
    """Called in the first process after the last job."""
    if isinstance(signal.getsignal(signal.SIGINT), _Ending):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class _Ending:
    """The handler of Ctrl-C in the first process."""

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self.first: float | None = None  # when the first Ctrl-C came

    def __call__(self, number: int, frame: object) -> None:
        if self.first is not None:
            if time.monotonic() - self.first > PATIENCE:  # a job hangs
                raise KeyboardInterrupt
            return
        self.first, told = time.monotonic(), set()
        while jobs := set(jobs_running(self.sweep)):
            for job in jobs - told:  # the terminal sends Ctrl-C to all processes, `kill` only to this one
                with suppress(ProcessLookupError):
                    os.kill(worker_of(job), signal.SIGTERM)
            told |= jobs
            time.sleep(INTERVAL)
        raise KeyboardInterrupt


def jobs_running(sweep: Path) -> Iterator[Path]:
    """The folders of the jobs that run now."""
    for path in sweep.glob(f"job*/{LOCK}"):
        if is_locked(path) and (path.parent / STARTED).is_file():
            yield path.parent


def running(job: Path) -> BaseFileLock:
    """A context in which the job runs. job: its folder."""
    return FileLock(job / LOCK)


def listen() -> None:
    """Called in a worker before each job. SIGTERM comes from the first process, or because that has died (mpx/sweep/orphan.py)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _tell)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _tell(number: int, frame: object) -> None:
    global _told
    _told = True
    if _job is not None:
        _job.terminate()  # a job that has received Ctrl-C as well ignores it
    elif _orphan():
        os._exit(TERMINATED)


def wait(job: Job) -> int:
    """Wait for a job in a worker. Returns its exit code."""
    global _job
    _job = job
    if _told:
        job.terminate()
    code = job.wait()
    _job = None
    return code


def told() -> bool:
    return _told


def end_after_others(sweep: Path) -> None:
    """End this worker's part of an interrupted sweep. joblib takes the exception for the result of the job, and then kills all workers."""
    while any(jobs_running(sweep)) and not _orphan():
        time.sleep(INTERVAL)
    if _orphan():
        os._exit(TERMINATED)
    raise KeyboardInterrupt


def _orphan() -> bool:
    return os.getppid() != channels.sweep_process()
