"""All pictures of one group, in the order in which a report shows them."""

import re
from collections.abc import Mapping

from mpx.report.comparison import Comparison, Group
from mpx.report.curves import bands
from mpx.report.plots.bands import TAGS, Bands, loss_figure, numerics_figure
from mpx.report.plots.bars import memory_figure, serve_figure, speedup_figure
from mpx.report.plots.front import front_figure
from mpx.report.plots.layers import layers_figure
from mpx.report.plots.picture import Picture, picture
from mpx.report.plots.seeds import seeds_figure
from mpx.report.plots.style import MOST_CURVES, Look
from mpx.report.words import metric_name, metric_of


def group_curves(group: Group, comparison: Comparison) -> dict[str, dict]:
    """{tag: {setting: band}} of the settings that are drawn: the control and the fastest."""
    folders = {
        row.setting: [comparison.folder / run.folder for run in row.runs if run.folder is not None] for row in group.rows[:MOST_CURVES]
    }
    return bands(folders, TAGS)


def pictures(group: Group, comparison: Comparison, curves: Bands, looks: Mapping[str, Look]) -> list[Picture]:
    metric = metric_of(group, comparison)
    name = metric_name(metric)
    start = file_start(group)
    first = f" Of {len(group.rows)} settings, the control and the {MOST_CURVES - 1} next to it in the table."
    only = first if len(group.rows) > MOST_CURVES else ""
    one = "One run of each pruned setting"
    wanted = (
        ("front", f"{name.capitalize()} against throughput",
         "Mean over seeds, bars of one standard deviation. The dashed line joins the settings that no other beats in both (Pareto front).",
         lambda: front_figure(group, metric, looks)),
        ("seeds", f"{name.capitalize()} of every seed",
         "Each mark is a run; the upright line is the mean, the band one standard deviation.",
         lambda: seeds_figure(group, metric, comparison.margin, looks)),
        ("speedup", "Speed-up of training",
         f"Throughput over the control's, with its {comparison.confidence:.0%} confidence interval.",
         lambda: speedup_figure(group, looks)),
        ("memory", "Peak memory", "Mean over seeds, bars of one standard deviation.", lambda: memory_figure(group, looks)),
        ("serve", "Speed of serving", "Of the deployed model; mean over seeds.", lambda: serve_figure(group, looks)),
        ("loss", "Loss over training", "Mean over seeds, band from the lowest to the highest seed." + only, lambda: loss_figure(curves, looks)),
        ("numerics", "Loss scale and underflow over training",
         "Mean over seeds, band from the lowest to the highest seed." + only, lambda: numerics_figure(curves, looks)),
        ("layers", "Density and kept magnitude by layer", f"{one}.", lambda: layers_figure(group, comparison.folder, looks)),
    )  # fmt: skip
    return [picture(f"{start}-{part}", f"{title}: {group.model}, {group.data}", caption, draw) for part, title, caption, draw in wanted]


def file_start(group: Group) -> str:
    return re.sub(r"[^\w.-]+", "_", f"{group.model}--{group.data}")
