"""Bars in groups: one group per row, one bar per way."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.rates import look
from mpx.render.plots.style import canvas, legend_below, names_on_y

ROW, BAR = 0.16, 0.11  # inches between groups, and of a bar


def grouped_bars(bars: Mapping[str, Mapping[str, float]], x: str) -> Figure:
    """bars: group -> way -> length. x: what the axis says. A colour per way."""
    bars = {group: ways for group, ways in bars.items() if ways}
    if not bars:
        raise NothingToDraw("nothing was measured")
    ways = list(dict.fromkeys(way for group in bars.values() for way in group))
    figure, axes = canvas(0.8 + len(bars) * (ROW + BAR * len(ways)))
    share = BAR / (ROW + BAR * len(ways))
    for y, lengths in enumerate(bars.values()):
        for way, length in lengths.items():
            i = ways.index(way)
            axes.barh(y + (i - (len(ways) - 1) / 2) * share, length, height=share * 0.9, color=look(i + 1).colour)
    names_on_y(axes, list(bars))
    axes.set_xlabel(x)
    legend_below(figure, [Patch(color=look(i + 1).colour) for i in range(len(ways))], ways)
    return figure
