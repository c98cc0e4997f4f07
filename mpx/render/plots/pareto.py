"""The metric against throughput, with error bars and the Pareto front."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare import speed
from mpx.compare.comparison import Group, Row
from mpx.render.plots.colours import INK, Style, Styles
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.seeds import name_of
from mpx.render.plots.style import MUTED, canvas, legend_below, plain_ticks, rate_ticks


def front_figure(group: Group, styles: Styles) -> Figure:
    """One point per setting. The line joins the settings on the Pareto front."""
    rows, _ = side_by_side(group)
    if not rows:
        raise NothingToDraw("no setting has both a test result and a throughput that counts")
    figure, axes = canvas(3.7)
    lower = group.metric.sign < 0
    best = pareto([(row.throughput.mean, row.metric.mean) for row in rows], lower)
    front = [rows[i] for i in best]
    axes.plot(
        [row.throughput.mean for row in front], [row.metric.mean for row in front],
        color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1,
    )  # fmt: skip
    handles = [_point(axes, row, styles[row.setting], i in best) for i, row in enumerate(rows)]
    axes.margins(0.08)
    plain_ticks(axes, "y")
    rate_ticks(axes)
    axes.set_xlabel("training samples per second (further right is faster)")
    axes.set_ylabel(group.metric.words + (" (lower is better)" if lower else ""))
    legend_below(figure, handles, [name_of(row) for row in rows])
    return figure


def side_by_side(group: Group) -> tuple[list[Row], list[Row]]:
    """The rows with both a metric and a throughput, in two lists: those that can be compared with each other, and the others.

    The rows of the first list were timed where the control was, and with its batch size. If the control's speed does not count, they were
    timed at the most common place.
    """
    place = speed.place_in(group)
    shared = place or speed.usual_place(group.runs)
    there: tuple[list[Row], list[Row]] = [], []
    for row in group.rows:
        if row.metric is not None and row.throughput is not None:
            there[speed.own_place(place, row.runs) != shared].append(row)
    return there


def _point(axes, row: Row, style: Style, on_front: bool):
    spread = {"xerr": row.throughput.std, "yerr": row.metric.std}  # None for a single run
    axes.errorbar(row.throughput.mean, row.metric.mean, **spread, fmt="none", ecolor=style.colour, elinewidth=1.1, capsize=2.5)
    axes.plot(
        row.throughput.mean, row.metric.mean, style.marker, color=style.colour,
        markersize=8 if on_front else 6, markeredgecolor=INK, markeredgewidth=0.7,
    )  # fmt: skip
    return Line2D([], [], color=style.colour, marker=style.marker, markersize=6, markeredgecolor=INK, markeredgewidth=0.7, linestyle="none")


def pareto(points: Sequence[tuple[float, float]], lower: bool) -> list[int]:
    """Indices of the Pareto-optimal points in speed and metric, slowest first. lower: a lower metric is better."""
    sign = -1.0 if lower else 1.0
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -sign * points[i][1])):
        if not kept or sign * points[i][1] > sign * points[kept[-1]][1]:
            kept.append(i)
    return kept[::-1]
