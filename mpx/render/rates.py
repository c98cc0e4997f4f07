"""Figures of measured rates: curves over a size in log-log panels, grouped bars, and the roofline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mpx.render.picture import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    MUTED,
    Style,
    canvas,
    labelled,
    legend_below,
    names_on_y,
    plain_log_ticks,
    wrapped,
)
from mpx.system.printing import rate

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


@dataclass(frozen=True)
class Point:
    """kind: what a marker stands for, such as a routine or a type of layer. flops_per_byte: arithmetic
    intensity.
    """

    kind: str
    fmt: str
    flops_per_byte: float
    tflops_per_s: float


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
        logarithmic(panel)
    for left in axes[:, 0]:
        left.set_ylabel(y)
    for panel in figure.axes:  # once all have the range that they share
        panel.grid(bool(labelled(panel.yaxis)), which="minor", axis="y")
    # long enough to show the dashes beside the marker
    legend_below(figure, list(handles.values()), list(handles), handlelength=3.6)
    return figure


def logarithmic(axes, base: int = 2) -> None:
    """Make both axes logarithmic, with plain numbers. base: base of the ticks along x."""
    axes.set_xscale("log", base=base)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        plain_log_ticks(axis)


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


def roofline_figure(
    points: Sequence[Point], gb_per_s: float | None, tops: Mapping[str, float]
) -> Figure | None:
    """tops: format -> peak TFLOP/s. Each format has a colour, shared with its roof, and each kind a
    marker.
    """
    points = [point for point in points if point.flops_per_byte > 0]
    if not points or not gb_per_s:
        return None
    formats = list(dict.fromkeys(point.fmt for point in points))
    kinds = list(dict.fromkeys(point.kind for point in points))
    figure, axes = canvas(4.0)
    ridges = [tops[fmt] * 1e3 / gb_per_s for fmt in formats if fmt in tops]
    x = np.geomspace(
        min(p.flops_per_byte for p in points) / 2, max([p.flops_per_byte for p in points] + ridges) * 2, 200
    )
    for i, fmt in enumerate(formats):
        if fmt in tops:
            axes.plot(x, np.minimum(tops[fmt], x * gb_per_s / 1e3), color=style_of(i).colour, linewidth=1.2)
    for point in points:
        colour, marker = style_of(formats.index(point.fmt)).colour, style_of(kinds.index(point.kind)).marker
        axes.plot(point.flops_per_byte, point.tflops_per_s, marker, color=colour, markersize=5.5)
    logarithmic(axes, base=10)
    axes.set_xlabel("operations per byte that must be moved")
    axes.set_ylabel("TFLOP/s")
    handles = [Line2D([], [], color=style_of(i).colour) for i in range(len(formats))]
    handles += [
        Line2D([], [], color=MUTED, marker=style_of(i).marker, linestyle="none") for i in range(len(kinds))
    ]
    legend_below(
        figure,
        handles,
        [f"{fmt}, roof {rate(tops[fmt])} TFLOP/s" if fmt in tops else fmt for fmt in formats] + kinds,
    )
    return figure
