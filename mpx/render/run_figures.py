"""Figures of a run: gradient exponents against a format's range, and the layers' sensitivity to pruning, with
its table.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mpx.precision.formats import Format
from mpx.render.colours import COLOURS
from mpx.render.run import print_sensitivity
from mpx.system.csv_file import to_text
from mpx.system.whole_file import write_whole

MAX_ROWS = 40  # layers; more are not legible
COLUMNS = ("rank", "name", "type", "shape", "kept_magnitude", "dense_loss", "loss", "loss_change")
MAX_BARS = 60  # more are not legible
WORSE, BETTER = COLOURS[0], COLOURS[4]  # blue and orange


def exponent_figure(layers: Mapping[str, Sequence[int]], lowest: int, fmt: Format, scale: float) -> Figure:
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


def _limits(axes, fmt: Format, scale: float, label: str, style: str) -> None:
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


def report_sensitivity(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """rows: those of mpx.sparsity.sensitivity."""
    ranked = (
        row | {"rank": rank, "shape": "x".join(map(str, row["shape"]))} for rank, row in enumerate(rows, 1)
    )
    write_whole(folder / "sensitivity.csv", to_text(COLUMNS, ranked))
    png = io.BytesIO()
    sensitivity_figure(rows).savefig(png, dpi=150)
    write_whole(folder / "sensitivity.png", png.getvalue())
    print_sensitivity(rows)


def sensitivity_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """One bar per layer, the most sensitive on top."""
    shown = rows[:MAX_BARS]
    figure = Figure(figsize=(8, 1.2 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    changes = [row["loss_change"] for row in shown]
    axes.barh(range(len(shown)), changes, color=[WORSE if change > 0 else BETTER for change in changes])
    axes.set_yticks(range(len(shown)), [row["name"] for row in shown], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"change of the validation loss, from {rows[0]['dense_loss']:.4g} dense")
    axes.set_title(
        "Pruning only one layer"
        + (f": the {MAX_BARS} most sensitive of {len(rows)}" if len(rows) > MAX_BARS else ""),
        fontsize=10,
    )
    return figure
