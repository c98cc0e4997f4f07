"""Draw the curves and pictures of one group, in the order of the report."""

import hashlib
import re
from collections.abc import Callable, Iterable

from matplotlib.figure import Figure

from mpx.compare.comparison import Comparison, Group
from mpx.compare.curves import bands
from mpx.compare.run import text_of
from mpx.compare.words import title
from mpx.render.plots.bands import Bands, loss_figure, numerics_figure
from mpx.render.plots.bars import memory_figure, serve_figure, speedup_figure
from mpx.render.plots.colours import Styles
from mpx.render.plots.layers import layers_figure
from mpx.render.plots.pareto import front_figure, side_by_side
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.seeds import seeds_figure
from mpx.render.plots.style import MAX_CURVES
from mpx.render.plots.underflow import underflow_figure

BAND = "Mean over seeds, band from the lowest to the highest seed. A seed that ended early counts up to its last finite value."
PARTS = ("front", "seeds", "speedup", "memory", "serve", "loss", "numerics", "underflow", "layers")
CARD_PARTS = ("front", "seeds", "speedup", "memory", "serve", "underflow")  # parts that need no run folder
MAX_FILE_NAME = 100  # characters, without the suffix


def group_curves(group: Group, comparison: Comparison) -> dict[str, dict]:
    """{tag: {setting: band}} for the drawn settings: the control and the fastest."""
    folders = {
        row.setting: [comparison.folder / run.folder for run in row.runs if run.folder is not None] for row in group.rows[:MAX_CURVES]
    }
    return bands(folders)


def pictures(group: Group, comparison: Comparison, curves: Bands, styles: Styles, parts: Iterable[str] = PARTS) -> list[Picture]:
    name = group.metric.words.capitalize()
    start = file_start(group)
    shown = f"The control and the {MAX_CURVES - 1} settings next to it in" if group.control else f"The first {MAX_CURVES} settings of"
    only = f" {shown} the table." if len(group.rows) > MAX_CURVES else ""
    pruned = sum(any(run.density is not None for run in row.runs) for row in group.rows)
    first = f" The first {MAX_CURVES} of {pruned}." if pruned > MAX_CURVES else ""
    spread = "bars of one standard deviation"
    elsewhere = " Not in it: settings whose speed was measured under other conditions." if side_by_side(group)[1] else ""
    interval = f"the line at its end is the {comparison.confidence * 100:g} % confidence interval"
    wanted: dict[str, tuple[str, str, Callable[[], Figure]]] = {
        "front": (
            f"{name} against throughput",
            f"Mean over seeds, {spread}. The dashed line joins the settings that no other beats in both (Pareto front).{elsewhere}",
            lambda: front_figure(group, styles),
        ),
        "seeds": (
            f"{name} of every seed", "Each mark is a run; the upright line is the mean, the band one standard deviation.",
            lambda: seeds_figure(group, comparison.margin, styles),
        ),
        "speedup": (
            "Speed-up of training", f"Throughput over the control's; {interval}, where there are seeds enough.",
            lambda: speedup_figure(group, styles),
        ),
        "memory": ("Peak memory", f"Mean over seeds, {spread}.", lambda: memory_figure(group, styles)),
        "serve": ("Speed of serving", f"Of the deployed model; mean over seeds, {spread}.", lambda: serve_figure(group, styles)),
        "loss": ("Loss over training", BAND + only, lambda: loss_figure(curves, styles)),
        "numerics": ("Loss scale and underflow over training", BAND + only, lambda: numerics_figure(curves, styles)),
        "underflow": (
            "Gradients that vanish", "Each mark is a run: the share over its sampled steps.", lambda: underflow_figure(group, styles),
        ),
        "layers": (
            "Density and kept magnitude by layer", f"One run of each pruned setting.{first}",
            lambda: layers_figure(group, comparison.folder, styles),
        ),
    }  # fmt: skip
    if all(row.serve is None for row in group.rows):  # without deployed models a "not drawn" reason would only distract
        del wanted["serve"]
    drawn = ((part, *wanted[part]) for part in parts if part in wanted)
    return [picture(f"{start}-{part}", what, title(group), caption, draw) for part, what, caption, draw in drawn]


def file_start(group: Group) -> str:
    """The unique prefix of the group's file names, in ASCII so that every file system accepts it.

    Lists such as [1,2] and [[1],2] become the same name, which a hash then tells apart.
    """
    whole = "--".join(filter(None, (group.model, group.data, text_of(group.changes))))
    name = re.sub(r"[^\w.-]+", "_", whole, flags=re.ASCII)
    plain = len(name) <= MAX_FILE_NAME and re.fullmatch(r"[\w.= -]*", whole, flags=re.ASCII)
    return name if plain else f"{name[:MAX_FILE_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
