"""The figure of a run's gradient exponents against a format's range."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from mpx.precision.formats import Format

MAX_ROWS = 40  # layers; more are not legible


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
