"""The roofline plot: measured speed against the limit that arithmetic intensity sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare.words import rate
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.rates import logarithmic, style_of
from mpx.render.plots.style import MUTED, canvas, legend_below


@dataclass(frozen=True)
class Point:
    """kind: what a marker stands for, such as a routine or a type of layer. flops_per_byte: arithmetic intensity."""

    kind: str
    fmt: str
    flops_per_byte: float
    tflops_per_s: float


def roofline_figure(points: Sequence[Point], gb_per_s: float | None, tops: Mapping[str, float]) -> Figure:
    """tops: format -> peak TFLOP/s. Each format has a colour, shared with its roof, and each kind a marker."""
    points = [point for point in points if point.flops_per_byte > 0]
    if not points or not gb_per_s:
        raise NothingToDraw("the bandwidth of memory, or what to place beneath it, was not measured")
    formats = list(dict.fromkeys(point.fmt for point in points))
    kinds = list(dict.fromkeys(point.kind for point in points))
    figure, axes = canvas(4.0)
    ridges = [tops[fmt] * 1e3 / gb_per_s for fmt in formats if fmt in tops]
    x = np.geomspace(min(p.flops_per_byte for p in points) / 2, max([p.flops_per_byte for p in points] + ridges) * 2, 200)
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
    handles += [Line2D([], [], color=MUTED, marker=style_of(i).marker, linestyle="none") for i in range(len(kinds))]
    legend_below(figure, handles, [f"{fmt}, roof {rate(tops[fmt])} TFLOP/s" if fmt in tops else fmt for fmt in formats] + kinds)
    return figure
