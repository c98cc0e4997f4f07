"""Bars labelled with their value: speed-up over the control, peak memory, serving throughput."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from mpx.compare.comparison import Estimate, Group, Row
from mpx.compare.words import number, rate_spec
from mpx.render.plots.colours import INK, Styles
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import canvas, height_for, names_on_y, rate_ticks

Bar = tuple[str, float, float, float, str]  # setting, length, error to the left, error to the right, label


def speedup_figure(group: Group, styles: Styles) -> Figure:
    rows = [row for row in group.rows if row.speedup is not None]
    if not rows:
        raise NothingToDraw("; ".join(dict.fromkeys(row.speed_note for row in group.rows if row.speed_note)) or "no throughput counts")
    figure, axes = _bars([_ratio(row) for row in rows], styles)
    axes.axvline(1.0, color=INK, linewidth=0.9)
    axes.set_xlabel("speed-up of training over the control")
    return figure


def memory_figure(group: Group, styles: Styles) -> Figure:
    bars = [_estimated(row, row.peak_gib, "#.3g") for row in group.rows if row.peak_gib is not None]
    if not bars:
        raise NothingToDraw("no run recorded its memory")
    figure, axes = _bars(bars, styles)
    axes.set_xlabel("peak memory, GiB")
    return figure


def serve_figure(group: Group, styles: Styles) -> Figure:
    """group: one with at least one deployed model."""
    figure, axes = _bars([_estimated(row, row.serve, rate_spec(row.serve.mean)) for row in group.rows if row.serve is not None], styles)
    axes.set_xlabel("served samples per second")
    rate_ticks(axes)
    return figure


def _ratio(row: Row) -> Bar:
    found = row.speedup
    low, high = (end if end is not None and abs(end) < 1e3 * found.ratio else found.ratio for end in (found.low, found.high))
    return row.setting, found.ratio, found.ratio - low, high - found.ratio, f"{found.ratio:.2f}×"


def _estimated(row: Row, found: Estimate, spec: str) -> Bar:
    spread = found.std or 0.0
    return row.setting, found.mean, spread, spread, number(found.mean, spec)


def _bars(bars: Sequence[Bar], styles: Styles):
    names = [name for name, *_ in bars]
    figure, axes = canvas(height_for(names))
    colours = [styles[name].colour for name in names]
    axes.barh(range(len(bars)), [length for _, length, *_ in bars], height=0.62, color=colours, edgecolor=INK, linewidth=0.6)
    if known := [(length, y, max(left, 0.0), max(right, 0.0)) for y, (_, length, left, right, _) in enumerate(bars) if left or right]:
        x, ys, *errors = zip(*known, strict=True)
        axes.errorbar(x, ys, xerr=errors, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    for y, (_, length, _, right, text) in enumerate(bars):
        axes.annotate(text, (length + max(right, 0.0), y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_xlim(0, 1.14 * max(length + max(right, 0.0) for _, length, _, right, _ in bars) or 1.0)
    names_on_y(axes, names)
    return figure, axes
