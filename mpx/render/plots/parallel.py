"""Draw the groups of a comparison in worker processes, since plots take most of a report's time."""

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from mpx.compare.comparison import Comparison, Group
from mpx.machine import usable_cores
from mpx.progress import track
from mpx.render.plots.looks import Look, looks

if TYPE_CHECKING:
    from mpx.render.plots.draw import Drawn

MIN_GROUPS = 3  # for fewer groups, starting worker processes takes longer than it saves
MAX_PROCESSES = 4  # each holds matplotlib in memory
BUSY = "drawing"
SCRIPT = "mpx-compare"  # as pip writes it


@dataclass
class Drawing:
    """The drawings of a comparison's groups. `all` waits for the worker processes, or draws here if there are none or they died."""

    comparison: Comparison
    futures: Sequence[Future]

    def all(self) -> "list[Drawn]":
        groups = self.comparison.groups
        try:
            if self.futures:
                return [future.result() for future in track(self.futures, BUSY, len(groups))]
        except BrokenProcessPool:
            pass
        look = looks(self.comparison)
        return [draw(group, self.comparison, look) for group in track(groups, BUSY, len(groups))]


def draw(group: Group, comparison: Comparison, looks: Mapping[str, Look]) -> "Drawn":
    from mpx.render.plots.draw import draw_group  # imports matplotlib, which the main process needs only later

    return draw_group(group, comparison, looks)


@contextmanager
def drawing(comparison: Comparison) -> Iterator[Drawing]:
    """Start drawing in worker processes, which end with the context, while this process goes on."""
    processes = min(usable_cores(), len(comparison.groups), MAX_PROCESSES)
    if processes < 2 or len(comparison.groups) < MIN_GROUPS or not _starts_alone():
        yield Drawing(comparison, ())
        return
    # Ctrl-C reaches all processes of a terminal. Only the main process handles it.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        yield Drawing(comparison, _submitted(pool, comparison))
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(pool: ProcessPoolExecutor, comparison: Comparison) -> Sequence[Future]:
    """One drawing for each group; () where a worker has already died."""
    look, rest = looks(comparison), replace(comparison, groups=(), left_out=())  # each worker gets only its own group
    try:
        return [pool.submit(draw, group, rest, look) for group in comparison.groups]
    except BrokenProcessPool:
        return ()


def _starts_alone() -> bool:
    """Whether a spawned process would not run the user's script again, which may lack a `__main__` guard. mpx's own script has one."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name.endswith("__main__") if spec else file is None or Path(file).stem == SCRIPT
