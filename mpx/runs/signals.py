"""What a signal to end does to a run: it ends once, at a point where nothing is lost.

Ctrl-C ends a run at once. Clusters send SIGTERM, SIGUSR1 or SIGUSR2 to a job that must go (preemption, time limit): a run that is training
saves after the present step, then ends. Further signals do not interrupt the writing of the record.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from mpx.errors import causes
from mpx.machine import TOLD_TO_GO

TERMINATED = 143  # exit code of a run that was told to go, and that the same command continues
ENDING = (signal.SIGINT, *TOLD_TO_GO)
WORKER_TOLD = re.compile(r"DataLoader worker .* killed by signal: Terminated")  # PyTorch's words
PATIENCE = 15  # seconds for which further signals are ignored; after that, one ends a run that hangs


class Stop:
    """The handler of ENDING. Each run in this process has its own. In forks of it, which are the data loader's workers, it does nothing."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.first: float | None = None  # when the first signal came
        self.saves = False  # whether training reaches a save point soon, which ends the run

    def __call__(self, number: int, frame: Any) -> None:
        if os.getpid() != self.process or (self.first is not None and time.monotonic() - self.first < PATIENCE):
            return
        again, self.first = self.first is not None, time.monotonic()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if again or not self.saves:
            raise SystemExit(TERMINATED)


_stop = Stop()


def stop_once() -> None:
    """Install handlers: the first Ctrl-C raises KeyboardInterrupt, the first of the others SystemExit(143), and further signals within
    PATIENCE are ignored. A signal that this process ignores already stays ignored; a shell's background jobs ignore Ctrl-C."""
    global _stop
    _stop = Stop()
    take_back()


def take_back() -> None:
    """Put this module's handlers back where a library has set its own."""
    for number in _handled():
        signal.signal(number, _stop)


def save_first(on: bool) -> None:
    """on: the first signal other than Ctrl-C raises nothing from now on, because training soon reaches a save point, which asks `asked`."""
    _stop.saves = on


def asked() -> bool:
    """Whether a signal has come."""
    return _stop.first is not None


def reinstate() -> None:
    """Put Python's handlers back in force where a library has replaced them.

    LLVM replaces them when it first compiles (Triton, NVRTC), with SA_RESETHAND and SA_NODEFER. `timeout` sends two signals at once; the
    second one would then meet the system's default handler, which kills the process.
    """
    for number in _handled():
        signal.signal(number, signal.getsignal(number))


_listens = False  # whether this process is within `unheard`
os.register_at_fork(after_in_child=lambda: _listens and signal.set_wakeup_fd(-1))  # a data loader's worker gets signals of its own


@contextmanager
def unheard() -> Iterator[Callable[[], bool]]:
    """Yields a function: has a signal come whose handler has not run? Python calls handlers in the main thread, but not while that is
    inside a library. The system's handler writes each signal's number into a pipe at once."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    came: set[int] = set()

    def unheard() -> bool:
        with suppress(OSError):  # nothing has come, or the block has just ended and closed the pipe
            came.update(os.read(reading, 4096))
        return not asked() and not came.isdisjoint(_handled())

    global _listens
    before, _listens = signal.set_wakeup_fd(writing, warn_on_full_buffer=False), True
    try:
        yield unheard
    finally:
        _listens = False
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


@contextmanager
def held() -> Iterator[None]:
    """Delay the signals to the end of the block. Some libraries swallow an exception that is raised while they are imported.

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
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def deaf_to_children() -> Iterator[None]:
    """In the block, nothing is raised where a child process ends, as PyTorch does for the worker of a data loader."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, _nothing)
    try:
        yield
    finally:
        if before is not None:  # None: not set from Python
            signal.signal(signal.SIGCHLD, before)


def _nothing(number: int, frame: Any) -> None:
    """Python complains where the handler of a signal that has come is no function any more."""


def ends(error: BaseException) -> bool:
    """Whether `error` is, or comes from, the end of the run by a signal. SIGTERM may have come to the worker of a data loader first."""
    return any(isinstance(e, KeyboardInterrupt | SystemExit | GeneratorExit) or WORKER_TOLD.search(str(e)) for e in causes(error))


@contextmanager
def dropped() -> Iterator[list[BaseException]]:
    """Yields those ends by a signal that Python has dropped in the block, as in functions that it calls at a fork or for garbage."""
    found, before = [], sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
            found.append(unraisable.exc_value.with_traceback(None))
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield found
    finally:
        sys.unraisablehook = before


@contextmanager
def termination_raises() -> Iterator[None]:
    """In the block, SIGTERM raises SystemExit(143) where it would end the process without a word. A handler of the program's own stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    stop, children = Stop(), ExitStack()

    def handler(number: int, frame: Any) -> None:
        if os.getpid() != stop.process:  # a fork, which knows nothing of the block
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        children.enter_context(deaf_to_children())  # a loader's workers are told as well; the error of their end would hide this one
        stop(number, frame)

    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        children.close()
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def as_found() -> Iterator[None]:
    """After the block, every handler of ENDING is the one from before it."""
    global _stop
    before, stop = {number: signal.getsignal(number) for number in ENDING}, _stop
    try:
        yield
    finally:
        _stop = stop
        for number, handler in before.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)


def _handled() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
