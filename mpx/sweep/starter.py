"""`python -m mpx.sweep.starter FD`: import the modules that every run needs, then fork a job for each request over the socket FD.

The starter initialises no device and starts no thread, because neither survives a fork. Its worker (mpx/sweep/warm.py) requests one job at
a time.
"""

import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any

from mpx.channels import SWEEP_PARENT
from mpx.private.python import finish
from mpx.sweep.resident import resident_files, touch

INTERRUPTED = -signal.SIGINT


def main() -> None:
    """Returns only in the process of a job, when it is ready to be `python -m mpx.train`."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    try:
        import mpx.sweep.imported  # noqa: F401

        if threading.active_count() > 1 or _spoils_cuda():
            os._exit(1)
    except BaseException:  # Ctrl-C, or a failed import, which a fresh process will report
        os._exit(1)
    Starter(channel).serve()


def _spoils_cuda() -> bool:
    """Whether an import has asked CUDA for devices. Forks cannot use CUDA after that."""
    import torch

    from mpx.private.torch_modules import cuda_is_lost_in_forks

    if not torch.backends.cuda.is_built():
        return False
    if (probe := _fork()) == 0:
        os._exit(cuda_is_lost_in_forks())
    return os.waitpid(probe, 0)[1] != 0


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads: OpenBLAS ends its own before a fork and restarts them after it
        return os.fork()


class Starter:
    """One loop that waits for requests, signals, the end of the job and the end of the worker."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel, self.requests = channel, channel.makefile("rb")
        self.signals, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.files = resident_files()
        self.job: int | None = None  # the process id of the running job
        self.worker_gone = False
        # The terminal also sends Ctrl-C to the job and the worker. It is recorded here, so that a Ctrl-C during a fork is not lost.
        self.interrupted = False
        signal.set_wakeup_fd(self.wake)
        heard = [signal.SIGTERM, signal.SIGCHLD, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else [])]
        self.handlers = {number: signal.signal(number, self._hear) for number in heard}

    def _hear(self, number: int, frame: Any) -> None:
        self.interrupted |= number == signal.SIGINT

    def serve(self) -> None:
        """Returns only in the process of a job."""
        while True:
            ready, _, _ = select.select([self.signals] if self.worker_gone else [self.signals, self.channel], [], [])
            if self.signals in ready and signal.SIGTERM in os.read(self.signals, 4096):
                self._terminate()
            self._reap()
            if self.channel in ready and self._read():
                return

    def _terminate(self) -> None:
        if self.job is None:
            os._exit(0)
        os.kill(self.job, signal.SIGTERM)

    def _reap(self) -> None:
        """If the job has ended, send its exit code to the worker."""
        if self.job is None:
            return
        pid, status = os.waitpid(self.job, os.WNOHANG)
        if pid == 0:
            return
        self.job = None
        self.interrupted = False  # the job has received any Ctrl-C since its start
        if self.worker_gone:
            os._exit(0)
        self._answer(os.waitstatus_to_exitcode(status))

    def _read(self) -> bool:
        """Read a request and fork. Returns whether this process is the job."""
        if not (line := self.requests.readline()):
            self.worker_gone = True
            self._terminate()
        elif self.interrupted:
            self.interrupted = False
            self._answer(INTERRUPTED)
        else:
            return self._fork(json.loads(line))
        return False

    def _answer(self, code: int) -> None:
        try:
            self.channel.sendall(b"%d\n" % code)
        except OSError:
            os._exit(0)

    def _fork(self, request: dict[str, Any]) -> bool:
        """Returns whether this process is the job."""
        me = str(os.getpid())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.job = _fork()
        if self.job:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            return False
        self._become(request["arguments"], request["environment"] | {SWEEP_PARENT: me})
        return True

    def _become(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Make this fork look like a fresh process."""
        os.dup(self.channel.fileno())  # open until the job ends, so that the worker's end stays open even if the starter is killed
        signal.set_wakeup_fd(-1)
        os.close(self.signals)
        os.close(self.wake)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self.interrupted:
            os._exit(130)
        touch(self.files)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        importlib.invalidate_caches()  # modules may have been written since the imports


def run() -> None:
    """Run mpx.train, then end the process without destroying the imported modules, which takes longer than a small run."""
    try:
        runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        finish()
        _flush()
        os._exit(ended.code & 0xFF)
    finally:
        gc.unfreeze()


def _flush() -> None:
    """Write out the buffers of open files, which os._exit would drop."""
    for file in gc.get_objects():
        if type(file) in (io.TextIOWrapper, io.BufferedWriter):
            with suppress(OSError, ValueError):  # the file is closed, or its disk is full
                file.flush()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


if __name__ == "__main__":
    main()
    run()
