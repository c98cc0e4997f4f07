"""Figures of measured rates: curves over a size in log-log panels, and grouped bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mpx.render.picture import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    Style,
    canvas,
    labelled,
    legend_below,
    names_on_y,
    plain_log_ticks,
    wrapped,
)

BESIDE = 3  # panels in a row; more are not legible
TITLE = 72  # characters of a row's titles
GAP, BAR = 0.16, 0.11  # inches between groups of bars, and per bar


@dataclass(frozen=True)
class Curve:
    """points: (size, rate). colour, line: indices into the styles of picture.py; related curves share a
    colour.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    line: int = 0


def style_of(colour: int, line: int = 0) -> Style:
    shades = (INK, *COLOURS)
    return Style(shades[colour % len(shades)], MARKERS[colour % len(MARKERS)], LINES[line % len(LINES)])


def curves_of(
    rows: Sequence[Mapping[str, Any]], panel: str, curve: str, x: str, y: str
) -> dict[str, list[Curve]]:
    """The panels of `rates_figure` from measured rows: title -> curves, each with a colour of its own. panel,
    curve, x, y: keys of the rows.
    """
    names = list(dict.fromkeys(row[curve] for row in rows))
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row[y]:
            panels.setdefault(row[panel], {}).setdefault(row[curve], []).append((row[x], row[y]))
    return {
        title: [Curve(name, points, names.index(name)) for name, points in curves.items()]
        for title, curves in panels.items()
    }


def rates_figure(panels: Mapping[str, Sequence[Curve]], x: str, y: str) -> Figure | None:
    """panels: title -> curves. x, y: labels of the axes."""
    panels = {title: [curve for curve in curves if curve.points] for title, curves in panels.items()}
    panels = {title: curves for title, curves in panels.items() if curves}
    if not panels:
        return None
    columns = min(len(panels), BESIDE)
    rows = -(-len(panels) // columns)
    figure, axes = canvas(3.4 if rows == 1 else 2.4 * rows, columns, rows, squeeze=False, sharey=True)
    handles: dict[str, Line2D] = {}
    for empty in axes.flat[len(panels) :]:
        empty.remove()
    for panel, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for curve in curves:
            style = style_of(curve.colour, curve.line)
            (drawn,) = panel.plot(
                *zip(*sorted(curve.points), strict=True),
                color=style.colour,
                marker=style.marker,
                linestyle=style.line,
                markersize=4.5,
            )
            handles.setdefault(curve.name, drawn)
        panel.set_title(wrapped(title, TITLE // columns))
        panel.set_xlabel(x)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            plain_log_ticks(axis)
    for left in axes[:, 0]:
        left.set_ylabel(y)
    for panel in figure.axes:  # once all have the range that they share
        panel.grid(bool(labelled(panel.yaxis)), which="minor", axis="y")
    # long enough to show the dashes beside the marker
    legend_below(figure, list(handles.values()), list(handles), handlelength=3.6)
    return figure


def grouped_bars(bars: Mapping[str, Mapping[str, float]], x: str) -> Figure | None:
    """bars: group -> variant -> length. x: label of the axis. Each variant has a colour."""
    bars = {group: lengths for group, lengths in bars.items() if lengths}
    if not bars:
        return None
    variants = list(dict.fromkeys(variant for lengths in bars.values() for variant in lengths))
    figure, axes = canvas(0.8 + len(bars) * (GAP + BAR * len(variants)))
    share = BAR / (GAP + BAR * len(variants))
    for y, lengths in enumerate(bars.values()):
        for variant, length in lengths.items():
            i = variants.index(variant)
            axes.barh(
                y + (i - (len(variants) - 1) / 2) * share,
                length,
                height=share * 0.9,
                color=style_of(i + 1).colour,
            )
    names_on_y(axes, list(bars))
    axes.set_xlabel(x)
    legend_below(figure, [Patch(color=style_of(i + 1).colour) for i in range(len(variants))], variants)
    return figure
