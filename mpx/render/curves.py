"""Training curves of a group: read, averaged over seeds, and drawn. A band from the lowest to the highest
seed surrounds the mean.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.render.colours import Style, Styles
from mpx.render.picture import NothingToDraw, canvas, legend_below, percent_axis, plain_log_ticks, plain_ticks
from mpx.runs.result import CURVES, ROW, TAGS, rows

SCALE = "numerics/loss_scale"
LOSSES = {"train/loss": "training loss", "val/loss": "validation loss"}
NUMERICS = {SCALE: "loss scale", "numerics/gradient_underflow_fraction": "share of gradients that vanish"}
POINTS = 200  # points per curve: more than a plot's width can show

Curve = tuple[np.ndarray, np.ndarray]  # steps [N], values [N]


@dataclass(frozen=True)
class Band:
    """Mean, minimum and maximum over seeds, on a common grid of steps [N]."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


Bands = Mapping[str, Mapping[str, Band]]  # tag -> setting -> band


def read_curves(folder: Path) -> dict[str, Curve]:
    """At most POINTS values of each tag in TAGS, as the run in `folder` logged them: of each step the
    newest.
    """
    # values are still text, since thinning drops most of a long curve
    logged: dict[str, dict[int, str]] = defaultdict(dict)
    path = folder / CURVES
    for row in rows(path) if path.is_file() else ():
        if (point := ROW.fullmatch(row)) is not None:  # a damaged row is a gap in the curve
            logged[point[1]][int(point[2])] = point[3]
    curves = {}
    for tag, points_of in logged.items():
        points = sorted(points_of.items())
        steps, values = zip(*(points[i] for i in spaced(len(points), POINTS)), strict=True)
        curves[tag] = np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)
    return curves


def spaced(count: int, points: int) -> np.ndarray:
    """At most `points` of `count` positions, evenly spaced, including the first and the last."""
    return np.arange(count) if count <= points else np.linspace(0, count - 1, points).round().astype(int)


def bands(folders: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, Band]]:
    """{tag: {setting: band}} of the logged tags. folders: setting -> the folders of its runs."""
    by_tag: dict[str, dict[str, Band]] = {tag: {} for tag in TAGS}
    for setting, places in folders.items():
        curves = [read_curves(place) for place in places]
        for tag in TAGS:
            one = band([curve[tag] for curve in curves if tag in curve], stepwise=tag == SCALE)
            if one is not None:
                by_tag[tag][setting] = one
    return by_tag


def band(curves: Sequence[Curve], *, stepwise: bool = False) -> Band | None:
    """The band of one setting's seeds, on the grid of the longest curve. A seed counts up to its last step.

    Seeds of different lengths are thinned to different steps. Between its own steps a seed lies on the line
    that joins them; stepwise: it keeps its last value, as a loss scale does. None without finite values.
    """
    curves = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in curves]
    curves = [curve for curve in curves if len(curve[0])]
    if not curves:
        return None
    grid = max((steps for steps, _ in curves), key=lambda steps: (steps[-1], len(steps)))
    between = _kept if stepwise else np.interp
    values = np.stack([between(grid, steps, kept) for steps, kept in curves])  # [seeds, N]
    values[[(grid < steps[0]) | (grid > steps[-1]) for steps, _ in curves]] = np.nan
    count = np.isfinite(values).sum(0)
    grid, values = grid[count > 0], values[:, count > 0]
    return Band(grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), len(curves))


def _kept(grid: np.ndarray, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The newest of the values at each step of the grid."""
    return values[np.searchsorted(steps, grid, side="right").clip(1) - 1]


def loss_figure(drawn: Bands, styles: Styles) -> Figure:
    figure, panels = _panels(drawn, LOSSES, styles)
    for axes, tag in panels:
        values = np.concatenate([one.mean for one in drawn[tag].values()])
        if values.min() > 0 and values.max() > 30 * values.min():
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        else:
            plain_ticks(axes, "y")
    return figure


def numerics_figure(drawn: Bands, styles: Styles) -> Figure:
    figure, panels = _panels(drawn, NUMERICS, styles)
    for axes, tag in panels:
        if tag == SCALE:
            axes.set_yscale("log", base=2)
            plain_log_ticks(axes.yaxis)
        else:
            percent_axis(axes, "y", max(float(one.high.max()) for one in drawn[tag].values()))
    return figure


def _panels(curves: Bands, titles: Mapping[str, str], styles: Styles) -> tuple[Figure, list[tuple[Any, str]]]:
    """The figure, and its axes with their tags. Raises NothingToDraw."""
    tags = [tag for tag in titles if curves.get(tag)]
    if not tags:
        raise NothingToDraw("the runs logged no such curves, or they no longer exist")
    figure, axes = canvas(3.0, columns=len(tags), squeeze=False)
    for panel, tag in zip(axes[0], tags, strict=True):
        for setting, one in curves[tag].items():
            _curve(panel, one, styles[setting], "steps-post" if tag == SCALE else "default")
        panel.set_title(titles[tag])
        panel.set_xlabel("optimizer step")
        panel.margins(x=0.01)
        steps = {int(step) for one in curves[tag].values() for step in one.steps}
        if len(steps) == 1:
            panel.set_xticks(list(steps))  # for a single step matplotlib would label fractional steps
    drawn = {
        setting: style for setting, style in styles.items() if any(setting in curves[tag] for tag in tags)
    }
    handles = [
        Line2D([], [], color=one.colour, linestyle=one.line, marker=one.marker, markersize=5)
        for one in drawn.values()
    ]
    legend_below(figure, handles, list(drawn))
    return figure, list(zip(axes[0], tags, strict=True))


def _curve(axes: Any, one: Band, style: Style, drawstyle: str) -> None:
    axes.plot(
        one.steps, one.mean, color=style.colour, linestyle=style.line, marker=style.marker, markersize=4.5,
        markevery=max(1, len(one.steps) // 6), linewidth=1.5, drawstyle=drawstyle,
    )  # fmt: skip
    if one.seeds > 1:
        step = "post" if "post" in drawstyle else None
        axes.fill_between(
            one.steps, one.low, one.high, color=style.colour, alpha=0.18, linewidth=0, step=step
        )
