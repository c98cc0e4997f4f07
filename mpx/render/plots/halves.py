"""Draws all groups of a comparison, about half of them in a second process."""

import pickle
import sys
from collections.abc import Sequence

from mpx.compare.comparison import Comparison
from mpx.render.plots.draw import Drawn, draw_group
from mpx.render.plots.parallel import SecondProcess
from mpx.render.plots.style import looks


def draw_all(comparison: Comparison, second: SecondProcess | None = None) -> list[Drawn]:
    """In the order of the groups. second: draws some of them already."""
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
    return [draw_group(comparison.groups[i], comparison, look) for i in which]


def main() -> None:
    comparison, which = pickle.load(sys.stdin.buffer)
    pickle.dump(draw_some(comparison, which), sys.stdout.buffer)


if __name__ == "__main__":
    main()
