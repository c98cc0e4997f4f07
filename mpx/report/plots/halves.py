"""Draws all groups of a comparison, about half of them in a second process."""

import gc
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpx.report.comparison import Comparison
from mpx.report.plots.draw import Drawn, draw_group
from mpx.report.plots.second import SecondProcess
from mpx.report.plots.style import looks


def draw_all(comparison: Comparison, second: SecondProcess | None = None) -> list[Drawn]:
    """In the order of the groups. second: has been asked."""
    every = range(len(comparison.groups))
    if second is None:
        return draw_some(comparison, every)
    rest = [i for i in every if i not in second.which]
    ours = draw_some(comparison, rest)
    theirs = second.answer() or draw_some(comparison, second.which)
    by_group = dict(zip([*second.which, *rest], [*theirs, *ours], strict=True))
    return [by_group[i] for i in every]


def draw_some(comparison: Comparison, which: Sequence[int]) -> list[Drawn]:
    look = looks(comparison)
    found = []
    with _garbage_by_hand():
        for group in (comparison.groups[i] for i in which):
            found.append(draw_group(group, comparison, look))
            gc.collect()
    return found


@contextmanager
def _garbage_by_hand() -> Iterator[None]:
    """Figures are cycles of many objects, which Python would search again and again while they are made."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def main() -> None:
    try:
        comparison, which = pickle.load(sys.stdin.buffer)
    except EOFError:
        return  # the process that would have asked has ended
    pickle.dump(draw_some(comparison, which), sys.stdout.buffer)


if __name__ == "__main__":
    main()
