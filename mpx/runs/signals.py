"""What a signal to end does to a run: it ends once, at a point where nothing is lost.

The first Ctrl-C, SIGTERM, SIGUSR1 or SIGUSR2 is a flag while the run trains: it saves after the present step,
then ends (mpx/runs/checkpoint.py). At other times, and from the second signal on, the run ends at once, and
writes its record.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpx.errors import causes
from mpx.system.machine import TOLD_TO_GO

TERMINATED = 143  # exit code of a run that was told to go, and that the same command continues
ENDING = (signal.SIGINT, *TOLD_TO_GO)
WORKER_TOLD = re.compile(r"DataLoader worker .* killed by signal: Terminated")  # PyTorch's words
ONE = 1.0  # seconds in which signals count as one: `timeout`, Slurm and a launcher may each send theirs
LOOK = 2.0  # seconds between two looks at the parent process


class Stop:
    """The handler of ENDING, and what has come.

    In forks of this process, which are the data loader's workers, it does nothing.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.first: int | None = None  # the signal that has come
        self.newest = 0.0  # when
        self.saves = False  # training reaches a save point soon, which asks `first` and ends the run
        self.over = False  # the record is being written

    def __call__(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if os.getpid() != self.process or self.over or (self.first is not None and now - self.newest < ONE):
            return
        again, self.newest = self.first is not None, now
        self.first = number if self.first is None else self.first
        if again or not self.saves:
            raise self.end()

    def end(self) -> BaseException:
        """What ends the run."""
        return KeyboardInterrupt() if self.first == signal.SIGINT else SystemExit(TERMINATED)

    def take_back(self) -> None:
        """Put the handler in force where a library has set its own, also behind Python's back, as LLVM does
        when it first compiles.
        """
        for number in _handled():
            signal.signal(number, self)

    def save_first(self, on: bool) -> None:
        """on: from now on training soon reaches a save point."""
        self.saves = on
        self.take_back()

    def finish(self) -> None:
        """From now on the run writes its record, and hears no signal."""
        self.over = True


run = Stop()  # of the run of this process


def begin() -> None:
    """A run begins: nothing has come. A signal that this process ignores already stays ignored; a shell's
    background jobs ignore Ctrl-C.
    """
    global run
    run = Stop()
    run.take_back()


def end_with_parent() -> None:
    """Send this process SIGTERM when its parent has died, which waits for it: a sweep, or torchrun."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def held() -> Iterator[None]:
    """Delay the signals to the end of the block. Some libraries swallow an exception that is raised while
    they are imported.

    Only the main thread gets any.
    """
    came: list[int] = []
    ours = _handled() if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def ends(error: BaseException) -> bool:
    """Whether `error` is, or comes from, the end of the run by a signal.

    SIGTERM may have come to the worker of a data loader first.
    """
    return any(
        isinstance(e, KeyboardInterrupt | SystemExit | GeneratorExit) or WORKER_TOLD.search(str(e))
        for e in causes(error)
    )


@contextmanager
def termination_raises() -> Iterator[Stop]:
    """In the block, SIGTERM raises SystemExit(143) where it would end the process without a word.

    A handler of the program's own stays. Yields what knows whether a signal has come: Python may have dropped
    the exception.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield Stop()
        return
    stop = Stop()

    def handler(number: int, frame: Any) -> None:
        if os.getpid() != stop.process:  # a fork, which knows nothing of the block
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop(number, frame)

    signal.signal(signal.SIGTERM, handler)
    try:
        yield stop
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _handled() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
