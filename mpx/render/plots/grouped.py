"""Grouped bars: one row of bars per group, one bar per variant."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.rates import style_of
from mpx.render.plots.style import canvas, legend_below, names_on_y

GAP, BAR = 0.16, 0.11  # inches between groups, and per bar


def grouped_bars(bars: Mapping[str, Mapping[str, float]], x: str) -> Figure:
    """bars: group -> variant -> length. x: label of the axis. Each variant has a colour."""
    bars = {group: lengths for group, lengths in bars.items() if lengths}
    if not bars:
        raise NothingToDraw("nothing was measured")
    variants = list(dict.fromkeys(variant for lengths in bars.values() for variant in lengths))
    figure, axes = canvas(0.8 + len(bars) * (GAP + BAR * len(variants)))
    share = BAR / (GAP + BAR * len(variants))
    for y, lengths in enumerate(bars.values()):
        for variant, length in lengths.items():
            i = variants.index(variant)
            axes.barh(y + (i - (len(variants) - 1) / 2) * share, length, height=share * 0.9, color=style_of(i + 1).colour)
    names_on_y(axes, list(bars))
    axes.set_xlabel(x)
    legend_below(figure, [Patch(color=style_of(i + 1).colour) for i in range(len(variants))], variants)
    return figure
