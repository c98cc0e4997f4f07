"""Plot for every seed the share of gradients that underflow at its loss scale, and that would underflow in FP16 without scaling."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare.comparison import Group, Row
from mpx.render.plots.colours import INK, Styles
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import MUTED, canvas, height_for, legend_below, names_on_y, percent_axis


def underflow_figure(group: Group, styles: Styles) -> Figure:
    rows = [row for row in group.rows if any(run.gradient_underflow is not None for run in row.runs)]
    if not rows:
        raise NothingToDraw("no run sampled its gradients (numerics.every)")
    names = [row.setting for row in rows]
    figure, axes = canvas(height_for(names))
    unscaled = [(share, y) for y, row in enumerate(rows) for share in _shares(row, "gradient_underflow_unscaled")]
    axes.plot([share for share, _ in unscaled], [y for _, y in unscaled], "|", color=MUTED, markersize=11, markeredgewidth=1.6)
    for y, row in enumerate(rows):
        style, own = styles[row.setting], _shares(row, "gradient_underflow")
        axes.plot(own, [y] * len(own), style.marker, color=style.colour, markersize=6, markeredgecolor=INK, markeredgewidth=0.6)
    percent_axis(axes, "x", max(max(line.get_xdata(), default=0.0) for line in axes.lines))
    names_on_y(axes, names)
    axes.set_xlabel("share of the gradients")
    vanish = Line2D([], [], color=INK, marker="o", markersize=6, linestyle="none")
    without = Line2D([], [], color=MUTED, marker="|", markersize=11, markeredgewidth=1.6, linestyle="none")
    legend_below(figure, [vanish, without], ["vanish in the setting's own format and scale", "would vanish in FP16 unscaled"])
    return figure


def _shares(row: Row, name: str) -> list[float]:
    return [share for run in row.runs if (share := getattr(run, name)) is not None]
