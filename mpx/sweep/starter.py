"""`python -m mpx.sweep.starter FD`: import the modules that every run needs, then fork a job for each request over the socket FD.

The starter initialises no device and starts no thread, because neither survives a fork. It forks one job at a time, for mpx/sweep/warm.py.
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
import time
import warnings
from array import array
from contextlib import suppress

from mpx.environment_variables import SWEEP_PARENT
from mpx.private.python import finish
from mpx.sweep.resident import resident_files, touch

ENDING = {signal.SIGINT, signal.SIGTERM}
INTERVAL = 0.01  # seconds between two looks at a job


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
    # Signals are for the job, whose end the starter must see. A library's thread may take those that this thread blocks.
    handlers = {number: signal.signal(number, lambda *_: None) for number in ENDING}
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    me, files = os.getpid(), resident_files()
    with channel.makefile("rb", buffering=0) as requests:
        while line := requests.readline():
            if not line.strip():  # the worker has told a job to end that was ending anyway
                continue
            if (job := _fork()) == 0:
                request = json.loads(line)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                _become(channel, request["arguments"], request["environment"] | {SWEEP_PARENT: str(me)}, files)
                return
            code = _outcome(job, channel)
            with suppress(OSError):  # the worker is gone
                channel.sendall(b"%d\n" % code)
    os._exit(0)


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


def _outcome(job: int, channel: socket.socket) -> int:
    """The exit code of a job. It is told to end when the worker sends a line, or is gone; and killed if the line begins with a CR."""
    gone = False
    while True:
        ended, status = os.waitpid(job, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if gone:
            time.sleep(INTERVAL)
        elif select.select([channel], [], [], INTERVAL)[0]:
            told = channel.recv(1)
            gone = not told
            os.kill(job, signal.SIGKILL if told == b"\r" else signal.SIGTERM)


def _become(channel: socket.socket, arguments: list[str], environment: dict[str, str], files: array) -> None:
    """Make this fork look like a fresh process."""
    os.dup(channel.fileno())  # open until the job ends, so that the worker's end stays open even if the starter is killed
    touch(files)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    importlib.invalidate_caches()  # modules may have been written since the imports


def run() -> None:
    """Run mpx.train, then end the process without destroying the imported modules, which takes longer than a small run."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # before mpx.train handles it
        os._exit(130)
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
