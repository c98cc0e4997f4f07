"""Curves of a rate over a size, in log-log panels, three beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.render.plots.colours import COLOURS, INK, LINES, MARKERS, Style
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import canvas, labelled, legend_below, plain_log_ticks, wrapped

BESIDE = 3  # panels in a row; more are not legible
TITLE = 72  # characters of a row's titles


@dataclass(frozen=True)
class Curve:
    """points: (size, rate). colour, line: indices into the styles of colours.py; related curves share a colour."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    line: int = 0


def style_of(colour: int, line: int = 0) -> Style:
    shades = (INK, *COLOURS)
    return Style(shades[colour % len(shades)], MARKERS[colour % len(MARKERS)], LINES[line % len(LINES)])


def rates_figure(panels: Mapping[str, Sequence[Curve]], x: str, y: str) -> Figure:
    """panels: title -> curves. x, y: labels of the axes."""
    panels = {title: [curve for curve in curves if curve.points] for title, curves in panels.items()}
    panels = {title: curves for title, curves in panels.items() if curves}
    if not panels:
        raise NothingToDraw("nothing was measured")
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
                *zip(*sorted(curve.points), strict=True), color=style.colour, marker=style.marker, linestyle=style.line, markersize=4.5
            )
            handles.setdefault(curve.name, drawn)
        panel.set_title(wrapped(title, TITLE // columns))
        panel.set_xlabel(x)
        logarithmic(panel)
    for left in axes[:, 0]:
        left.set_ylabel(y)
    for panel in figure.axes:  # once all have the range that they share
        panel.grid(bool(labelled(panel.yaxis)), which="minor", axis="y")
    legend_below(figure, list(handles.values()), list(handles), handlelength=3.6)  # long enough to show the dashes beside the marker
    return figure


def logarithmic(axes, base: int = 2) -> None:
    """Make both axes logarithmic, with plain numbers. base: base of the ticks along x."""
    axes.set_xscale("log", base=base)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        plain_log_ticks(axis)
