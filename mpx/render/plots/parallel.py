"""Draws the groups of a comparison in other processes: most of the time that a report takes goes into its plots."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING

from mpx.compare.comparison import Comparison, Group
from mpx.machine import usable_cores
from mpx.progress import track
from mpx.render.plots.looks import Look, looks

if TYPE_CHECKING:
    from mpx.render.plots.draw import Drawn

LEAST_GROUPS = 3  # from which on other processes save more than their start takes
MOST_PROCESSES = 4  # each holds matplotlib in memory
BUSY = "drawing"


@dataclass
class Drawing:
    """What is being drawn of each group of a comparison. Where no other process draws, or they failed, `all` draws in this one."""

    comparison: Comparison
    begun: Sequence[Future]

    def all(self) -> "list[Drawn]":
        groups = self.comparison.groups
        try:
            if self.begun:
                return [future.result() for future in track(self.begun, BUSY, len(groups))]
        except BrokenProcessPool:
            pass
        look = looks(self.comparison)
        return [draw(group, self.comparison, look) for group in track(groups, BUSY, len(groups))]


def draw(group: Group, comparison: Comparison, looks: Mapping[str, Look]) -> "Drawn":
    from mpx.render.plots.draw import draw_group  # matplotlib, which the first process needs only later

    return draw_group(group, comparison, looks)


@contextmanager
def drawing(comparison: Comparison) -> Iterator[Drawing]:
    """Other processes begin to draw while this one does something else. They end with the context."""
    processes = min(usable_cores(), len(comparison.groups), MOST_PROCESSES)
    if processes < 2 or len(comparison.groups) < LEAST_GROUPS or not _starts_alone():
        yield Drawing(comparison, ())
        return
    # Ctrl-C reaches all processes of a terminal. Only this one answers it.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        look, rest = looks(comparison), replace(comparison, groups=(), left_out=())  # a process gets no other groups than its own
        yield Drawing(comparison, [pool.submit(draw, group, rest, look) for group in comparison.groups])
    finally:
        pool.shutdown(cancel_futures=True)


def _starts_alone() -> bool:
    """Whether a process of multiprocessing starts without running the user's own script again, which may have no `__main__` guard."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name.endswith("__main__") if spec else not hasattr(main, "__file__")
