"""Ctrl-C and SIGTERM end a run once: a second one, while the run writes down how far it came, would lose that."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 15  # seconds in which further ones do nothing; after them one ends a run that hangs


def stop_once() -> None:
    """From now on the first Ctrl-C raises KeyboardInterrupt, or the first SIGTERM SystemExit(143), and what follows it within PATIENCE
    nothing. A signal that this process ignores, as a shell's background jobs do Ctrl-C, stays ignored."""
    first: float | None = None

    def stop(number: int, frame: Any) -> None:
        nonlocal first
        if first is not None and time.monotonic() - first < PATIENCE:
            return
        first = time.monotonic()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)

    for number in _heard():
        signal.signal(number, stop)


def reinstate() -> None:
    """Python's handlers in force again, where a library has put its own before them.

    LLVM does when it first compiles (Triton, NVRTC), with SA_RESETHAND and SA_NODEFER: of two signals at once, as `timeout` sends, the
    second meets the system's default and kills the process on the spot.
    """
    for number in _heard():
        signal.signal(number, signal.getsignal(number))


@contextmanager
def held() -> Iterator[None]:
    """They take effect at the end: raised amid an import, some libraries swallow them."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def _heard() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
