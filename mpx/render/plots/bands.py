"""Training curves: loss, loss scale and underflow. A band from the lowest to the highest seed surrounds the mean."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare.curves import Band
from mpx.render.plots.colours import Style, Styles
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import canvas, legend_below, percent_axis, plain_log_ticks, plain_ticks

LOSSES = {"train/loss": "training loss", "val/loss": "validation loss"}
NUMERICS = {"numerics/loss_scale": "loss scale", "numerics/gradient_underflow_fraction": "share of gradients that vanish"}

Bands = Mapping[str, Mapping[str, Band]]  # tag -> setting -> band


def loss_figure(bands: Bands, styles: Styles) -> Figure:
    figure, panels = _panels(bands, LOSSES, styles)
    for axes, tag in panels:
        values = np.concatenate([band.mean for band in bands[tag].values()])
        if values.min() > 0 and values.max() > 30 * values.min():
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        else:
            plain_ticks(axes, "y")
    return figure


def numerics_figure(bands: Bands, styles: Styles) -> Figure:
    figure, panels = _panels(bands, NUMERICS, styles)
    for axes, tag in panels:
        if tag == "numerics/loss_scale":
            axes.set_yscale("log", base=2)
            plain_log_ticks(axes.yaxis)
        else:
            percent_axis(axes, "y", max(float(band.high.max()) for band in bands[tag].values()))
    return figure


def _panels(bands: Bands, titles: Mapping[str, str], styles: Styles):
    tags = [tag for tag in titles if bands.get(tag)]
    if not tags:
        raise NothingToDraw("the runs logged no such curves, or they no longer exist")
    figure, axes = canvas(3.0, columns=len(tags), squeeze=False)
    for panel, tag in zip(axes[0], tags, strict=True):
        for setting, band in bands[tag].items():
            _curve(panel, band, styles[setting], "steps-post" if tag == "numerics/loss_scale" else "default")
        panel.set_title(titles[tag])
        panel.set_xlabel("optimizer step")
        panel.margins(x=0.01)
        if len(steps := {int(step) for band in bands[tag].values() for step in band.steps}) == 1:
            panel.set_xticks(list(steps))  # for a single step matplotlib would label fractional steps
    drawn = {setting: style for setting, style in styles.items() if any(setting in bands[tag] for tag in tags)}
    handles = [Line2D([], [], color=one.colour, linestyle=one.line, marker=one.marker, markersize=5) for one in drawn.values()]
    legend_below(figure, handles, list(drawn))
    return figure, list(zip(axes[0], tags, strict=True))


def _curve(axes, band: Band, style: Style, drawstyle: str) -> None:
    every = max(1, len(band.steps) // 6)
    axes.plot(
        band.steps,
        band.mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=4.5,
        markevery=every,
        linewidth=1.5,
        drawstyle=drawstyle,
    )
    if band.seeds > 1:
        axes.fill_between(
            band.steps, band.low, band.high, color=style.colour, alpha=0.18, linewidth=0, step="post" if "post" in drawstyle else None
        )
