"""Training curves of a group: read, averaged over seeds, and drawn. A band from the lowest to the highest
seed surrounds the mean. And the exponents of a run's gradients.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.render.picture import (
    Style,
    Styles,
    canvas,
    legend_below,
    metric_axis,
    percent_axis,
    plain_log_ticks,
    plain_ticks,
)
from mpx.runs.result import CURVES, ROW, Metric, rows

if TYPE_CHECKING:  # PyTorch, which a comparison does not need
    from mpx.precision.formats import Format

SCALE = "numerics/loss_scale"
LOSSES = {"train/loss": "train loss", "val/loss": "val loss"}
NUMERICS = {SCALE: "loss scale", "numerics/gradient_underflow_fraction": "share of gradients that vanish"}
POINTS = 200  # points per curve: more than a plot's width can show
MAX_ROWS = 40  # layers of the exponents; more are not legible

Curve = Mapping[int, float]  # step -> value


@dataclass(frozen=True)
class Band:
    """Mean, minimum and maximum over seeds at each step [N]."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


Bands = Mapping[str, Mapping[str, Band]]  # tag -> setting -> band


def read_curves(folder: Path) -> dict[str, dict[int, float]]:
    """{tag: curve} of the values that the run in `folder` logged: of each step the newest."""
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    path = folder / CURVES
    for row in rows(path) if path.is_file() else ():
        if (point := ROW.fullmatch(row)) is not None:  # a damaged row is a gap in the curve
            curves[point[1]][int(point[2])] = float(point[3])
    return curves


def bands(folders: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, Band]]:
    """{tag: {setting: band}} of the logged tags. folders: setting -> the folders of its runs."""
    by_tag: dict[str, dict[str, Band]] = defaultdict(dict)
    for setting, places in folders.items():
        curves = [read_curves(place) for place in places]
        for tag in {tag for curve in curves for tag in curve}:
            if one := band([curve[tag] for curve in curves if tag in curve]):
                by_tag[tag][setting] = one
    return by_tag


def band(curves: Sequence[Curve]) -> Band | None:
    """The band of one setting's seeds, at no more than POINTS of their steps. A seed counts at the steps that
    it logged. None without finite values.
    """
    values: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for step, value in curve.items():
            if math.isfinite(value):
                values[step].append(value)
    if not values:
        return None
    steps = np.array(sorted(values))
    steps = steps[np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).round().astype(int)]
    mean, low, high = (np.array([summary(values[step]) for step in steps]) for summary in (np.mean, min, max))
    return Band(steps, mean, low, high, len(curves))


def loss_figure(drawn: Bands, metric: Metric, styles: Styles) -> Figure | None:
    """The losses, and the metric by which runs are judged."""
    judged = re.sub("^test/", "val/", metric.name)

    def scale(axes: Any, tag: str) -> None:
        values = np.concatenate([one.mean for one in drawn[tag].values()])
        if tag == judged and judged not in LOSSES:
            metric_axis(axes, "y", metric, values.max())
        elif values.min() > 0 and values.max() > 30 * values.min():
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        else:
            plain_ticks(axes, "y")

    return _panels(drawn, LOSSES | {judged: judged.replace("/", " ")}, styles, scale)


def numerics_figure(drawn: Bands, styles: Styles) -> Figure | None:
    def scale(axes: Any, tag: str) -> None:
        if tag == SCALE:
            axes.set_yscale("log", base=2)
            plain_log_ticks(axes.yaxis)
        else:
            percent_axis(axes, "y", max(float(one.high.max()) for one in drawn[tag].values()))

    return _panels(drawn, NUMERICS, styles, scale)


def _panels(
    curves: Bands, titles: Mapping[str, str], styles: Styles, scale: Callable[[Any, str], None]
) -> Figure | None:
    """A panel for each tag whose values change; None if none does. scale: of a panel's y axis."""
    tags = [
        tag for tag in titles if any(one.high.max() > one.low.min() for one in curves.get(tag, {}).values())
    ]
    if not tags:
        return None
    figure, axes = canvas(3.0, columns=len(tags), squeeze=False)
    for panel, tag in zip(axes[0], tags, strict=True):
        for setting, one in curves[tag].items():
            _curve(panel, one, styles[setting], "steps-post" if tag == SCALE else "default")
        panel.set_title(titles[tag])
        panel.set_xlabel("optimizer step")
        panel.margins(x=0.01)
        scale(panel, tag)
    drawn = {
        setting: Line2D([], [], color=one.colour, linestyle=one.line, marker=one.marker, markersize=5)
        for setting, one in styles.items()
        if any(setting in curves[tag] for tag in tags)
    }
    legend_below(figure, list(drawn.values()), list(drawn))
    return figure


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


def exponent_figure(layers: Mapping[str, Sequence[int]], lowest: int, fmt: "Format", scale: float) -> Figure:
    """The gradient histogram of the Mixed Precision Training paper.

    One row per layer, one column per power of two; the colour is the share of the layer's gradients.

    layers: name -> count of zeros, then counts of the exponents from `lowest` on. scale: the loss scale,
    which divides the format's limits. Source: Micikevicius et al., Mixed Precision Training,
    arXiv:1710.03740, figure 2.
    """
    names = list(layers)[:MAX_ROWS]
    shares = [[count / max(sum(layers[name]), 1) for count in layers[name][1:]] for name in names]
    figure = Figure(figsize=(10, 1.6 + 0.24 * len(names)), layout="constrained")
    axes = figure.subplots()
    columns = len(shares[0])
    image = axes.imshow(
        shares,
        aspect="auto",
        cmap="viridis",
        extent=(lowest, lowest + columns, len(names), 0),
        interpolation="nearest",
    )
    axes.set_yticks(
        [i + 0.5 for i in range(len(names))], [_label(name, layers[name]) for name in names], fontsize=7
    )
    axes.set_xlabel("log2 |gradient of the layer's output|")
    _limits(axes, fmt, 1.0, "no scaling", "dashed")
    if scale != 1.0:
        _limits(axes, fmt, scale, f"loss scale 2^{math.log2(scale):g}", "solid")
    of = f" of the first {MAX_ROWS} of {len(layers)} layers" if len(layers) > MAX_ROWS else ""
    axes.set_title(f"Gradient exponents{of}; lines: what {fmt.name} can hold", fontsize=10)
    axes.legend(loc="lower left", fontsize=7)
    axes.set_xlim(lowest, lowest + columns)
    figure.colorbar(image, ax=axes, label="share of the layer's gradients")
    return figure


def _label(name: str, counts: Sequence[int]) -> str:
    return f"{name} ({counts[0] / max(sum(counts), 1):.0%} zero)"


def _limits(axes, fmt: "Format", scale: float, label: str, style: str) -> None:
    # an outline for contrast
    axes.axvline(math.log2(fmt.rounds_to_zero / scale), color="white", linestyle=style, linewidth=3)
    axes.axvline(
        math.log2(fmt.rounds_to_zero / scale),
        color="tab:red",
        linestyle=style,
        label=f"becomes zero, {label}",
    )
    axes.axvline(
        math.log2(fmt.largest / scale), color="tab:orange", linestyle=style, label=f"overflows, {label}"
    )
