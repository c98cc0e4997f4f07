"""The metric against throughput, with error bars and the Pareto front."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare import speed
from mpx.compare.comparison import METRICS, Group, Row
from mpx.render.plots.looks import INK, Look
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import MUTED, canvas, legend_below


def front_figure(group: Group, looks: Mapping[str, Look]) -> Figure:
    """One point per setting. The line joins the settings that no other beats in both."""
    rows, _ = side_by_side(group)
    if not rows:
        raise NothingToDraw("no setting has both a test result and a throughput that counts")
    figure, axes = canvas(3.7)
    lower = METRICS[group.metric].sign < 0
    best = pareto([(row.throughput.mean, row.metric.mean) for row in rows], lower)
    front = [rows[i] for i in best]
    axes.plot(
        [row.throughput.mean for row in front], [row.metric.mean for row in front],
        color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1,
    )  # fmt: skip
    _spreads(axes, rows, [looks[row.setting].colour for row in rows])
    handles = [_point(axes, row, looks[row.setting], i in best) for i, row in enumerate(rows)]
    axes.margins(0.08)
    axes.ticklabel_format(style="plain", useOffset=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 10 else f"{value:g}")
    axes.set_xlabel("training samples per second (further right is faster)")
    axes.set_ylabel(METRICS[group.metric].words + (" (lower is better)" if lower else ""))
    legend_below(figure, handles, [row.setting for row in rows])
    return figure


def side_by_side(group: Group) -> tuple[list[Row], list[Row]]:
    """The rows with both a metric and a throughput, in two lists: those that can be compared with one another, and the others.

    The first ones were timed on the control's device with its batch size, or, where the control's speed does not count, on the device and
    with the batch size of most runs.
    """
    place = speed.usual_place(group.rows[0].runs) if group.control else None
    shared = place or speed.usual_place([run for row in group.rows for run in row.runs])
    there: tuple[list[Row], list[Row]] = [], []
    for row in group.rows:
        if row.metric is not None and row.throughput is not None:
            there[speed.own_place(place, row.runs) != shared].append(row)
    return there


def _spreads(axes, rows: Sequence[Row], colours: Sequence[str]) -> None:
    """The error bars of all points, and their ends. Point by point, `axes.errorbar` would make and draw seven things for each."""
    points = [(row.throughput.mean, row.metric.mean, row.throughput.std, row.metric.std) for row in rows]
    x, y, dx, dy = np.array(points, dtype=float).T  # an unknown spread is NaN, which is not drawn
    axes.errorbar(x, y, xerr=dx, yerr=dy, fmt="none", ecolor=colours, elinewidth=1.1)
    for ends, marker in (((x - dx, y), "|"), ((x + dx, y), "|"), ((x, y - dy), "_"), ((x, y + dy), "_")):
        axes.scatter(*ends, s=25, c=colours, marker=marker, linewidths=1, zorder=2)


def _point(axes, row: Row, look: Look, on_front: bool):
    axes.plot(
        row.throughput.mean, row.metric.mean, look.marker, color=look.colour,
        markersize=8 if on_front else 6, markeredgecolor=INK, markeredgewidth=0.7,
    )  # fmt: skip
    return Line2D([], [], color=look.colour, marker=look.marker, markersize=6, markeredgecolor=INK, markeredgewidth=0.7, linestyle="none")


def pareto(points: Sequence[tuple[float, float]], lower: bool) -> list[int]:
    """Indices of the points that no other beats in both speed and metric, slowest first. lower: the metric is better when lower."""
    sign = -1.0 if lower else 1.0
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -sign * points[i][1])):
        if not kept or sign * points[i][1] > sign * points[kept[-1]][1]:
            kept.append(i)
    return kept[::-1]
