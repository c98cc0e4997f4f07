"""End a process of a run that would wait for ever. Inside gloo or NCCL it waits minutes for one that has ended, and hears no signal."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from mpx import environment_variables
from mpx.runs import ranks, signals
from mpx.runs.folder import CHECKPOINTS, PART

LOOK = 2.0  # seconds between two looks
GRACE = 5.0  # seconds in which a process ends by itself after another one
started: list[Popen] = []  # the other processes of rank 0's run, where Lightning has started them


@contextmanager
def over_all(folder: Path, conclude: Callable[[bool], int]) -> Iterator[None]:
    """Within the block, end this process, which is rank 0, if another rank has ended or a signal has come and this process does not notice.

    conclude: writes the record and returns the exit code. Its argument says whether another process is gone without a word.
    """
    over = threading.Event()
    for part in (folder / CHECKPOINTS).glob(f".*{PART}"):  # left by a process that was killed
        part.unlink()

    def patience() -> float | None:
        """Seconds for this process to end by itself; None if it need not, or writes a checkpoint."""
        if any((folder / CHECKPOINTS).glob(f".*{PART}")):
            return None
        if ranks.ends_elsewhere(folder) or _lost():
            return GRACE
        return signals.PATIENCE if unheard() else None

    def watch() -> None:
        while not over.wait(LOOK):
            seconds = patience()
            if seconds is not None and not over.wait(seconds) and patience() is not None:
                code = conclude(_lost())
                end_others()
                sys.stdout.flush()
                os._exit(code)

    with signals.unheard() as unheard:
        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()
            started.clear()
            ranks.forget_ends(folder)


def _lost() -> bool:
    return any(process.poll() for process in started)


def end_others() -> None:
    """End the processes that Lightning has started, which have nothing to save. One that waits inside NCCL would hear no other signal."""
    others, started[:] = list(started), []
    for process in others:
        process.kill()


def end_with_rank_0() -> None:
    """End this process, which Lightning has started for rank 0, soon after rank 0."""

    def end() -> None:
        time.sleep(GRACE)
        os._exit(1)

    _after(environment_variables.rank_0(), end)


def end_with_parent(parent: int) -> None:
    """Send this process, a job of a sweep, SIGTERM when `parent` has died, which waits for it.

    Does nothing if `parent` is not this process's parent: the ranks of a distributed run end with rank 0.
    """
    if os.getppid() == parent:
        _after(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))


def _after(parent: int, end: Callable[[], None]) -> None:
    """Call `end`, in a thread, once `parent` is no longer the parent of this process."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        end()

    threading.Thread(target=watch, daemon=True).start()
