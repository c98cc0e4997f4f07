"""The metric of every seed by setting, with the control's mean and margin."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from mpx.compare.comparison import Group, Row
from mpx.compare.metric import Metric
from mpx.render.plots.colours import INK, Style, Styles
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import MUTED, canvas, height_for, names_on_y, plain_ticks


def seeds_figure(group: Group, margin: float, styles: Styles) -> Figure:
    metric = group.metric
    rows = [row for row in group.rows if row.metric is not None or row.diverged]
    if all(row.metric is None for row in rows):
        raise NothingToDraw(f"no run has a {metric.words}")
    names = [name_of(row) for row in rows]
    figure, axes = canvas(height_for(names))
    _control(axes, group, metric, margin)
    _means(axes, {y: row for y, row in enumerate(rows) if row.metric is not None}, styles)
    for i, row in enumerate(rows):
        _seeds(axes, i, row, metric.name, styles[row.setting])
    names_on_y(axes, names)
    plain_ticks(axes, "x")
    axes.set_xlabel(metric.words + (" (lower is better)" if metric.sign < 0 else ""))
    return figure


def name_of(row: Row) -> str:
    """The setting, and how many of its seeds have no value since they diverged."""
    return row.setting + (f" ({row.diverged} diverged)" if row.diverged else "")


def _means(axes, rows: Mapping[int, Row], styles: Styles) -> None:
    """Draw all rows at once, which is much faster than one call per row. rows: by their place on the axis."""
    means, y = np.array([row.metric.mean for row in rows.values()]), np.array(list(rows))
    spread = np.array([row.metric.std or 0.0 for row in rows.values()])
    colours = [styles[row.setting].colour for row in rows.values()]
    axes.hlines(y, means - spread, means + spread, colors=colours, linewidth=5, alpha=0.3, zorder=2)
    axes.vlines(means, y - 0.3, y + 0.3, colors=colours, linewidth=2, capstyle="projecting", zorder=2)


def _seeds(axes, y: int, row: Row, metric: str, style: Style) -> None:
    values = [run.metrics[metric] for run in row.runs if run.status == "completed" and metric in run.metrics]
    axes.plot(
        values, [y] * len(values), style.marker, color=style.colour, markersize=5.5, markeredgecolor=INK, markeredgewidth=0.6, alpha=0.85
    )


def _control(axes, group: Group, metric: Metric, margin: float) -> None:
    """Draw the control's mean and the margin."""
    found = next((row.metric for row in group.rows if row.setting == group.control), None)
    if found is None:
        return
    limit = found.mean - metric.sign * metric.allowed(margin, found.mean)
    axes.axvline(found.mean, color=INK, linewidth=0.9)
    axes.axvline(limit, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
    sides = ("right", "left") if metric.sign < 0 else ("left", "right")  # on opposite sides, so that the labels never overlap
    for at, text, side, colour in ((found.mean, "control", sides[0], INK), (limit, "margin", sides[1], MUTED)):
        axes.annotate(
            text, (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha=side, va="bottom", color=colour, fontsize=8,
        )  # fmt: skip
