"""The colour, marker and line style of each setting, the same in every plot and in the page. Does not import
matplotlib.

Sources of the colours, which colour-blind readers can distinguish: Okabe and Ito, Color Universal Design,
without their yellow, which is too light for paper; the last is the wine red of Paul Tol's muted scheme. So
four formats, dense and 2:4, have a colour each.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpx.compare.comparison import Comparison
from mpx.compare.groups import natural

INK = "#1b1f24"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    line: Any  # of matplotlib's LineStyleType


Styles = Mapping[str, Style]  # by setting


def styles(comparison: Comparison) -> dict[str, Style]:
    """Setting -> its style. Controls have the colour INK. The others get colours by how many groups have
    them, then by name, so that a new seed does not change them.
    """
    controls = list(dict.fromkeys(group.control for group in comparison.groups if group.control))
    count = Counter(row.setting for group in comparison.groups for row in group.rows)
    others = sorted(set(count) - set(controls), key=lambda name: (-count[name], " " in name, natural(name)))
    chosen = {
        setting: Style(INK, MARKERS[i % len(MARKERS)], LINES[i % len(LINES)])
        for i, setting in enumerate(controls)
    }
    for i, setting in enumerate(others):
        # shifts the markers, so that seven colours and seven markers give 49 different pairs
        again = i // len(COLOURS)
        chosen[setting] = Style(
            COLOURS[i % len(COLOURS)], MARKERS[(i + 1 + again) % len(MARKERS)], LINES[again % len(LINES)]
        )
    return chosen
