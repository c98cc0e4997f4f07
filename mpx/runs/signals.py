"""Ctrl-C and SIGTERM end a run once. A second signal would interrupt the writing of the record."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 15  # seconds for which further signals are ignored; after that, one ends a run that hangs


def stop_once() -> None:
    """Install handlers: the first Ctrl-C raises KeyboardInterrupt, the first SIGTERM SystemExit(143), and further signals within PATIENCE
    are ignored. A signal that this process ignores already stays ignored; a shell's background jobs ignore Ctrl-C."""
    first: float | None = None

    def stop(number: int, frame: Any) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first < PATIENCE:
            return
        first = time.monotonic()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)

    for number in _handled():
        signal.signal(number, stop)


def reinstate() -> None:
    """Put Python's handlers back in force where a library has replaced them.

    LLVM replaces them when it first compiles (Triton, NVRTC), with SA_RESETHAND and SA_NODEFER. `timeout` sends two signals at once; the
    second one would then meet the system's default handler, which kills the process.
    """
    for number in _handled():
        signal.signal(number, signal.getsignal(number))


@contextmanager
def held() -> Iterator[None]:
    """Delay the signals to the end of the block. Some libraries swallow an exception that is raised while they are imported."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _handled()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def _handled() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
