"""Density and kept magnitude of each layer, for one run of each pruned setting."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mpx.compare.comparison import Group, Row
from mpx.compare.json_file import read_json
from mpx.render.plots.colours import INK, Style, Styles
from mpx.render.plots.picture import NothingToDraw
from mpx.render.plots.style import MAX_CURVES, canvas, legend_below, names_on_y
from mpx.runs.folder import RESULT

MAX_LAYERS = 80  # rows; more are not legible
MAX_LAYER_NAME = 38  # characters


def layers_figure(group: Group, study: Path, styles: Styles) -> Figure:
    """study: the parent of the runs' folders."""
    pruned = {}
    for row in group.rows:
        if len(pruned) < MAX_CURVES and (layers := pruned_layers(row, study)):
            pruned[row.setting] = layers
    if not pruned:
        raise NothingToDraw("no record of a pruned run was found")
    names = list(dict.fromkeys(layer["name"] for layers in pruned.values() for layer in layers))
    names, known = names[:MAX_LAYERS], len(names)
    figure, (density, kept) = canvas(1.0 + 0.17 * len(names), columns=2, sharey=True)
    for axes, key, title in ((density, "density", "density"), (kept, "kept_magnitude", "magnitude kept")):
        for i, (setting, layers) in enumerate(pruned.items()):
            aside = 0.6 * ((i + 0.5) / len(pruned) - 0.5)  # an offset within the row, so that equal values stay visible
            _dots(axes, names, {layer["name"]: layer[key] for layer in layers}, styles[setting], aside)
        axes.set_title(title)
        axes.set_xlim(-0.02, 1.02)
    if known > MAX_LAYERS:
        density.set_xlabel(f"the first {MAX_LAYERS} of {known} layers")
    names_on_y(density, [_short(name) for name in names], 7.5)
    for axes in (density, kept):
        axes.grid(True, axis="y")
        axes.tick_params(axis="y", length=0)
    settings = list(pruned)
    handles = [Line2D([], [], color=styles[name].colour, linestyle="none", marker=styles[name].marker, markersize=6) for name in settings]
    legend_below(figure, handles, settings)
    return figure


def pruned_layers(row: Row, study: Path) -> list[dict[str, Any]]:
    """The pruned layers of the setting's first run whose record still exists."""
    for run in sorted(row.runs, key=lambda run: run.seed):
        path = study / run.folder / RESULT if run.folder is not None and run.density is not None else None
        if path is not None and path.is_file():
            return [layer for layer in read_json(path)["sparsity"]["layers"] if layer["pruned"]]
    return []


def _dots(axes, names: list[str], values: Mapping[str, float | None], style: Style, aside: float) -> None:
    at = [(values[name], y + aside) for y, name in enumerate(names) if values.get(name) is not None]
    x, y = zip(*at, strict=True) if at else ((), ())
    axes.plot(x, y, style.marker, color=style.colour, markersize=5, markeredgecolor=INK, markeredgewidth=0.4, alpha=0.9)


def _short(name: str) -> str:
    """The name cut at its start, since its end is more specific."""
    return name if len(name) <= MAX_LAYER_NAME else "…" + name[1 - MAX_LAYER_NAME :]
