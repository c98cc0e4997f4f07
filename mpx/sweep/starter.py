"""`python -m mpx.sweep.starter FD`: import what every run needs, then fork a job for each request that comes in over the socket FD.

It initialises no device and starts no thread, which a fork would not survive. Its worker asks for one job at a time (mpx/sweep/warm.py).
"""

import atexit
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

from mpx.sweep.orphan import PARENT
from mpx.sweep.resident import resident_files, touch

INTERRUPTED = -signal.SIGINT
OFTEN = (
    "sklearn.datasets",
    "tensorboard.summary",
    "torch.utils.serialization",
    "torch.utils.tensorboard",
)  # not in mpx.training.fit
WITH_GPU = (  # there compiling is usual, and memory means the device's: what a job does not need would count as its memory elsewhere
    "matplotlib.backends.backend_agg", "timm", "torch._inductor.compile_fx", "torchvision.transforms.v2",
    "transformers.models.bert.modeling_bert",
)  # fmt: skip
DRIVER = "/dev/nvidiactl"


def main() -> None:
    """Returns in the process of a job only, once it is ready to be what `python -m mpx.train` is."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    try:
        _import()
        if threading.active_count() > 1 or _spoils_cuda():
            os._exit(1)
    except BaseException:  # Ctrl-C, or something is not installed: a fresh process will say what
        os._exit(1)
    Starter(channel).serve()


def _import() -> None:

    for name in OFTEN + (WITH_GPU if os.path.exists(DRIVER) else ()):
        with suppress(ImportError):  # then the job will say so, if it needs it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first full collection of every job looks at, and so copies, all that was imported


def _spoils_cuda() -> bool:
    """Whether something imported has asked CUDA for devices, after which no fork can use them."""
    import torch

    if not torch.cuda._is_compiled():
        return False
    if (probe := _fork()) == 0:
        os._exit(torch._C._cuda_isInBadFork())
    return os.waitpid(probe, 0)[1] != 0


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: OpenBLAS ends and begins its own around a fork
        return os.fork()


class Starter:
    """Waits for requests, for the end of its job, for signals and for the end of its worker, all in one loop."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel, self.requests = channel, channel.makefile("rb")
        self.signals, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.files = resident_files()
        self.job: int | None = None
        self.worker_gone = False
        # Ctrl-C, which reaches job and worker too; noted, so that one which comes while a job is forked is not lost
        self.interrupted = False
        signal.set_wakeup_fd(self.wake)
        heard = [signal.SIGTERM, signal.SIGCHLD, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else [])]
        self.handlers = {number: signal.signal(number, self._hear) for number in heard}

    def _hear(self, number: int, frame: Any) -> None:
        self.interrupted |= number == signal.SIGINT

    def serve(self) -> None:
        """Returns in a job only."""
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
        """Tell the worker how the job has ended, if it has."""
        if self.job is None:
            return
        pid, status = os.waitpid(self.job, os.WNOHANG)
        if pid == 0:
            return
        self.job = None
        self.interrupted = False  # what came meanwhile was for the job
        if self.worker_gone:
            os._exit(0)
        self._answer(os.waitstatus_to_exitcode(status))

    def _read(self) -> bool:
        """Read from the worker, and fork if it asks for a job. Whether this is the job."""
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
        """Whether this is the job."""
        me = str(os.getpid())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.job = _fork()
        if self.job:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            return False
        self._become(request["arguments"], request["environment"] | {PARENT: me})
        return True

    def _become(self, arguments: list[str], environment: dict[str, str]) -> None:
        """Turn this fork into what a fresh process would be."""
        os.dup(self.channel.fileno())  # for as long as this process lives: the worker of a killed starter sees then that the job ended too
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
        importlib.invalidate_caches()  # files that have been written since


def run() -> None:
    """Run mpx.train and end this process as Python does, but for taking the imported modules apart, which takes longer than a small run."""
    try:
        runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        threading._shutdown()  # waits for threads; multiprocessing ends its forks so too
        atexit._run_exitfuncs()
        _flush()
        os._exit(ended.code & 0xFF)
    finally:
        gc.unfreeze()


def _flush() -> None:
    """Write out what open files still hold."""
    for file in gc.get_objects():
        if type(file) in (io.TextIOWrapper, io.BufferedWriter):
            with suppress(OSError, ValueError):  # closed, or its disk is full
                file.flush()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


if __name__ == "__main__":
    main()
    run()
