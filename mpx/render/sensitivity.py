"""Layers ranked by sensitivity to pruning: a table, and sensitivity.csv and sensitivity.png in the run's folder."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mpx.csv_file import to_text
from mpx.render.plots.colours import COLOURS
from mpx.render.run import print_sensitivity
from mpx.whole_file import write_whole

COLUMNS = ("rank", "name", "type", "shape", "kept_magnitude", "dense_loss", "loss", "loss_change")
MAX_BARS = 60  # more are not legible
WORSE, BETTER = COLOURS[0], COLOURS[4]  # blue and orange


def report_sensitivity(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """rows: those of mpx.sparsity.sensitivity."""
    ranked = (row | {"rank": rank, "shape": "x".join(map(str, row["shape"]))} for rank, row in enumerate(rows, 1))
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
        "Pruning only one layer" + (f": the {MAX_BARS} most sensitive of {len(rows)}" if len(rows) > MAX_BARS else ""), fontsize=10
    )
    return figure
