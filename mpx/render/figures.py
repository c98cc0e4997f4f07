"""The pictures of a group, in the order of the report: front, seeds, bars, curves, underflow. Each is drawn
where it says something.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare import speed
from mpx.compare.comparison import Comparison, Estimate, Group, Row, Speedup
from mpx.compare.run import text_of
from mpx.compare.words import confidence, title
from mpx.render.curves import Bands, bands, loss_figure, numerics_figure
from mpx.render.picture import (
    INK,
    MAX_CURVES,
    MUTED,
    Picture,
    Style,
    Styles,
    canvas,
    height_for,
    legend_below,
    metric_axis,
    names_on_y,
    percent_axis,
    picture,
    rate_ticks,
)  # fmt: skip
from mpx.system.printing import rate

BAND = (
    "Mean over seeds, band from the lowest to the highest seed. A seed that ended early counts up to "
    "its last finite value."
)
MAX_FILE_NAME = 100  # characters, without the suffix
Bar = tuple[str, float, float, float, str]  # setting, length, lowest, highest, label


def pictures(group: Group, comparison: Comparison, styles: Styles) -> list[Picture]:
    """Those that say something."""
    name, spread = group.metric.words.capitalize(), "bars of one standard deviation"
    interval = f"the line at its end is the {confidence(comparison)} interval"
    curves = group_curves(group, comparison)
    speedups = speedup_bars(group)
    parts: list[tuple[str, str, str, Callable[[], Figure | None]]] = [
        (
            "front",
            f"{name} against throughput",
            f"Mean over seeds, {spread}. The dashed line joins the settings that no other beats in both "
            f"(Pareto front).{_elsewhere(group)}",
            lambda: front_figure(group, styles),
        ),
        (
            "seeds",
            f"{name} of every seed",
            "Each mark is a run; the upright line is the mean, the band one standard deviation.",
            lambda: seeds_figure(group, comparison.question.margin, styles),
        ),
        (
            "speedup",
            "Speed-up of training",
            f"Throughput over the control's; {interval}, where there are seeds enough.",
            lambda: bars_figure(speedups, "speed-up of training over the control", styles),
        ),
        (
            "time",
            "Time to train",
            f"As measured, also beside other programs; mean over seeds, {spread}.",
            lambda: (
                None if speedups else bars_figure(bars(group, "time_to_train_s"), "time to train, s", styles)
            ),
        ),
        (
            "memory",
            "Peak memory",
            f"Mean over seeds, {spread}.",
            lambda: bars_figure(bars(group, "peak_gib"), "peak memory, GiB", styles),
        ),
        (
            "serve",
            "Speed of serving",
            f"Of the deployed model; mean over seeds, {spread}.",
            lambda: bars_figure(bars(group, "serve"), "served samples per second", styles),
        ),
        (
            "loss",
            "Training curves",
            BAND + _some_curves(group),
            lambda: loss_figure(curves, group.metric, styles),
        ),
        (
            "numerics",
            "Loss scale and underflow over training",
            BAND + _some_curves(group),
            lambda: numerics_figure(curves, styles),
        ),
        (
            "underflow",
            "Gradients that vanish",
            "Each mark is a run: the share over its sampled steps.",
            lambda: underflow_figure(group, styles),
        ),
    ]
    drawn = (
        picture(f"{file_start(group)}-{part}", what, title(group), caption, draw)
        for part, what, caption, draw in parts
    )
    return [one for one in drawn if one is not None]


def group_curves(group: Group, comparison: Comparison) -> Bands:
    """{tag: {setting: band}} for the drawn settings: the control and the fastest."""
    drawn = group.rows[:MAX_CURVES]
    return bands(
        {row.setting: [comparison.folder / run.folder for run in row.runs if run.folder] for row in drawn}
    )


def _some_curves(group: Group) -> str:
    if len(group.rows) <= MAX_CURVES:
        return ""
    first = (
        f"The control and the {MAX_CURVES - 1} settings next to it in"
        if group.control
        else f"The first {MAX_CURVES} settings of"
    )
    return f" {first} the table."


def _elsewhere(group: Group) -> str:
    known = [row for row in group.rows if row.throughput and row.metric]
    some = len(side_by_side(group)) < len(known)
    return " Not in it: settings whose speed was measured under other conditions." if some else ""


def file_start(group: Group) -> str:
    """The unique prefix of the group's file names, in ASCII so that every file system accepts it.

    Lists such as [1,2] and [[1],2] become the same name, which a hash then tells apart.
    """
    whole = "--".join(filter(None, (group.model, group.data, text_of(group.changes))))
    name = re.sub(r"[^\w.-]+", "_", whole, flags=re.ASCII)
    plain = len(name) <= MAX_FILE_NAME and re.fullmatch(r"[\w.= -]*", whole, flags=re.ASCII)
    return name if plain else f"{name[:MAX_FILE_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def front_figure(group: Group, styles: Styles) -> Figure | None:
    """The metric against throughput: one point per setting. The line joins the settings on the Pareto
    front.
    """
    rows = side_by_side(group)
    if not rows:
        return None
    figure, axes = canvas(3.7)
    lower = group.metric.sign < 0
    points = [(x.mean, y.mean) for _, x, y in rows]
    best = pareto(points, lower)
    front = [points[i] for i in best]
    axes.plot(*zip(*front, strict=True), color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    handles = []
    for i, (row, x, y) in enumerate(rows):
        style = styles[row.setting]
        spread = {"xerr": x.std, "yerr": y.std, "ecolor": style.colour}  # None for a single run
        handles += axes.errorbar(
            x.mean, y.mean, **spread, elinewidth=1.1, capsize=2.5,
            fmt=style.marker, color=style.colour, markersize=8 if i in best else 6,
            markeredgecolor=INK, markeredgewidth=0.7, clip_on=False,
        )[:1]  # fmt: skip
    axes.margins(0.08)
    metric_axis(axes, "y", group.metric, max(y for _, y in points))
    rate_ticks(axes)
    axes.set_xlabel("training samples per second (further right is faster)")
    axes.set_ylabel(group.metric.words + (" (lower is better)" if lower else ""))
    legend_below(figure, handles, [name_of(row) for row, _, _ in rows])
    return figure


def side_by_side(group: Group) -> list[tuple[Row, Estimate, Estimate]]:
    """The rows with both a throughput and a metric that can be compared with each other: timed where the
    control was, and with its batch size. If the control's speed does not count, at the most common place.
    """
    place = speed.place_in(group)
    shared = place or speed.usual_place(group.runs)
    known = [(row, row.throughput, row.metric) for row in group.rows if row.throughput and row.metric]
    return [one for one in known if speed.place_for(one[0].runs, place) == shared]


def pareto(points: Sequence[tuple[float, float]], lower: bool) -> list[int]:
    """Indices of the Pareto-optimal points in speed and metric, slowest first. lower: a lower metric is
    better.
    """
    sign = -1.0 if lower else 1.0
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -sign * points[i][1])):
        if not kept or sign * points[i][1] > sign * points[kept[-1]][1]:
            kept.append(i)
    return kept[::-1]


def seeds_figure(group: Group, margin: float, styles: Styles) -> Figure | None:
    """The metric of every seed by setting, with the control's mean and margin."""
    metric = group.metric
    rows = [row for row in group.rows if row.metric is not None or row.diverged]
    known = {y: (row.metric, styles[row.setting].colour) for y, row in enumerate(rows) if row.metric}
    if not known:
        return None
    names = [name_of(row) for row in rows]
    figure, axes = canvas(height_for(names))
    if group.control is not None and group.rows[0].metric:
        mean = group.rows[0].metric.mean
        _control(axes, mean, mean - metric.sign * metric.allowed(margin, mean), metric.sign)
    y, means = np.array(list(known)), np.array([one.mean for one, _ in known.values()])
    spread = np.array([one.std or 0.0 for one, _ in known.values()])
    colours = [colour for _, colour in known.values()]
    axes.hlines(y, means - spread, means + spread, colors=colours, linewidth=5, alpha=0.3, zorder=2)
    axes.vlines(means, y - 0.3, y + 0.3, colors=colours, linewidth=2, capstyle="projecting", zorder=2)
    values = [
        [run.metrics[metric.name] for run in row.completed if metric.name in run.metrics] for row in rows
    ]
    for i, row in enumerate(rows):
        _marks(axes, values[i], i, styles[row.setting], markersize=5.5, alpha=0.85)
    names_on_y(axes, names)
    metric_axis(axes, "x", metric, max(map(max, filter(None, values))))
    axes.set_xlabel(metric.words + (" (lower is better)" if metric.sign < 0 else ""))
    return figure


def name_of(row: Row) -> str:
    """The setting, and how many of its seeds have no value since they diverged."""
    return row.setting + (f" ({row.diverged} diverged)" if row.diverged else "")


def _marks(axes: Any, values: Sequence[float], y: int, style: Style, **look: float) -> None:
    """One mark per run, beside each other in row y."""
    axes.plot(
        values,
        [y] * len(values),
        style.marker,
        color=style.colour,
        markeredgecolor=INK,
        markeredgewidth=0.6,
        clip_on=False,
        **look,
    )


def _control(axes: Any, mean: float, limit: float, sign: int) -> None:
    """The control's mean and the margin, whose labels stand on opposite sides, so that they never overlap."""
    axes.axvline(mean, color=INK, linewidth=0.9)
    axes.axvline(limit, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
    sides = ("right", "left") if sign < 0 else ("left", "right")
    for at, text, side, colour in ((mean, "control", sides[0], INK), (limit, "margin", sides[1], MUTED)):
        axes.annotate(
            text, (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha=side, va="bottom", color=colour, fontsize=8,
        )  # fmt: skip


def speedup_bars(group: Group) -> list[Bar]:
    known = [(row.setting, row.speedup) for row in group.rows if row.speedup]
    control = (str(group.control), 1.0, 1.0, 1.0, "control")
    return [control] * bool(known) + [
        (setting, gain.ratio, gain.low or gain.ratio, _end(gain), f"{gain.ratio:.2f}×")
        for setting, gain in known
    ]


def _end(gain: Speedup) -> float:
    """The interval's upper end, if it has one that a picture can show."""
    return gain.high if gain.high is not None and gain.high < 1e3 * gain.ratio else gain.ratio


def bars(group: Group, field: str) -> list[Bar]:
    """field: of Row."""
    known = [(row.setting, value) for row in group.rows if (value := getattr(row, field)) is not None]
    return [
        (
            setting,
            value.mean,
            value.mean - (value.std or 0.0),
            value.mean + (value.std or 0.0),
            rate(value.mean),
        )
        for setting, value in known
    ]


def bars_figure(bars: Sequence[Bar], x: str, styles: Styles) -> Figure | None:
    """Bars labelled with their value. x: label of the axis. None if nothing differs."""
    if len({text for *_, text in bars}) < 2:
        return None
    names, lengths, lows, highs, texts = zip(*bars, strict=True)
    figure, axes = canvas(height_for(names))
    rows = range(len(bars))
    colours = [styles[name].colour for name in names]
    axes.barh(rows, lengths, height=0.62, color=colours, edgecolor=INK, linewidth=0.6)
    errors = np.maximum([np.subtract(lengths, lows), np.subtract(highs, lengths)], 0.0)
    errors[:, (errors == 0).all(0)] = np.nan  # no line for a single run
    axes.errorbar(lengths, rows, xerr=errors, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    for y, high, text in zip(rows, highs, texts, strict=True):
        axes.annotate(text, (high, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_xlim(0, 1.14 * max(highs))
    names_on_y(axes, names)
    rate_ticks(axes)
    axes.set_xlabel(x)
    return figure


def underflow_figure(group: Group, styles: Styles) -> Figure | None:
    """For every seed the share of gradients that underflow at its loss scale, and that would underflow in
    FP16 without scaling.
    """
    shares = {row.setting: _shares(row.runs, "gradient_underflow") for row in group.rows}
    rows = [row for row in group.rows if shares[row.setting]]
    if not any(map(any, shares.values())):
        return None
    figure, axes = canvas(height_for([row.setting for row in rows]))
    unscaled = [
        (share, y) for y, row in enumerate(rows) for share in _shares(row.runs, "gradient_underflow_unscaled")
    ]
    x, ys = zip(*unscaled, strict=True) if unscaled else ((), ())
    axes.plot(x, ys, "|", color=MUTED, markersize=11, markeredgewidth=1.6)
    for y, row in enumerate(rows):
        _marks(axes, shares[row.setting], y, styles[row.setting], markersize=6)
    percent_axis(axes, "x", max(max(line.get_xdata(), default=0.0) for line in axes.lines))
    names_on_y(axes, [row.setting for row in rows])
    axes.set_xlabel("share of the gradients")
    vanish = Line2D([], [], color=INK, marker="o", markersize=6, linestyle="none")
    without = Line2D([], [], color=MUTED, marker="|", markersize=11, markeredgewidth=1.6, linestyle="none")
    legend_below(
        figure,
        [vanish, without],
        ["vanish in the setting's own format and scale", "would vanish in FP16 unscaled"],
    )
    return figure


def _shares(runs: Iterable[Any], name: str) -> list[float]:
    return [share for run in runs if (share := getattr(run, name)) is not None]
