"""What TensorBoard shows of a whole study, asked of TensorBoard itself: two settings of two seeds each,
trained for real, and `_report`.
"""

import itertools
import random
import sys
from pathlib import Path

import pytest
from ask_tensorboard import tensorboard
from few_steps import FEW_STEPS
from made_comparison import made_comparison, made_row, made_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mpx.compare.comparison import Group
from mpx.render.report import write
from mpx.train import main

RUN = ("study=small", "model=mlp", "trainer.log_every_n_steps=1", "numerics.every=1", *FEW_STEPS)
STARTS = {"fp32": "mlp-digits-fp32-dense", "amp": "mlp-digits-amp-dense"}
SETTINGS = ("fp32-dense", "amp-dense")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    for mode, seed in itertools.product(STARTS, (0, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                sys,
                "argv",
                ["mpx.train", *RUN, f"precision={mode}", f"seed={seed}", f"output_dir={root}/outputs"],
            )
            with pytest.raises(SystemExit) as ended:
                main()
        assert ended.value.code == 0
    comparison = real_comparison(root / "outputs" / "small")
    write(comparison)
    write(comparison)  # the second replaces the first
    return comparison


def real_comparison(folder: Path):
    """The real runs of `folder`, with made-up figures: what counts here is what becomes of them."""
    runs = {}
    for mode, start in STARTS.items():
        places = sorted(folder.glob(f"{start}*/seed*"))
        assert len(places) == 2
        here = [str(place.relative_to(folder)) for place in places]
        draw = random.Random(0)
        runs[mode] = [
            made_run(f"{mode}-dense", seed, draw, model="mlp", data="digits", folder=place)
            for seed, place in enumerate(here)
        ]
    rows = tuple(made_row(found, runs["fp32"], "test/accuracy") for found in runs.values())
    group = Group(
        "mlp", "digits", "fp32-dense", rows, "Fastest: amp-dense.", "Nothing deployed.", ("a <note>",)
    )
    return made_comparison(folder, group, study="small")


@pytest.fixture(scope="module")
def ask(study):
    with tensorboard(study.folder) as asked:
        yield asked


def names(study) -> set[str]:
    return {run.folder for row in study.groups[0].rows for run in row.runs}


def test_runs_are_those_of_the_study_and_the_report(study, ask):
    assert set(ask("runs")) == names(study) | {"_report", *(f"_report/{setting}" for setting in SETTINGS)}
    assert len(list((study.folder / "_report").rglob("events.out.tfevents.*"))) == 1 + len(SETTINGS)


def test_the_table_and_the_verdict_are_text(ask):
    tags = ask("plugin/text/tags")["_report"]
    assert {"verdict/text_summary", "table/mlp--digits/text_summary"} <= set(tags)
    table = ask("plugin/text/text?run=_report&tag=table%2Fmlp--digits%2Ftext_summary")[0]["text"]
    assert table.count("<tr>") == 4  # of the text, the head and two settings, rendered from Markdown
    assert "amp-dense" in table
    assert "a &lt;note&gt;" in table
    assert "Fastest: amp-dense." in ask("plugin/text/text?run=_report&tag=verdict%2Ftext_summary")[0]["text"]


def test_the_plots_are_images(study, ask):
    tags = ask("plugin/images/tags")["_report"]
    assert {
        f"mlp--digits/{part}" for part in ("front", "seeds", "speedup", "memory", "loss", "numerics")
    } <= set(tags)
    listed = ask("plugin/images/images?run=_report&tag=mlp--digits%2Ffront&sample=0")
    png = ask(f"plugin/images/individualImage?{listed[0]['query']}")
    assert png.startswith(b"\x89PNG")


def test_bands_are_scalars_of_mean_lowest_and_highest(study, ask):
    low, mean, high = (
        ask(f"plugin/scalars/scalars?run=_report%2Ffp32-dense&tag=mlp--digits%2Ftrain%2Floss%2F{part}")
        for part in ("low", "mean", "high")
    )
    seeds = [
        EventAccumulator(str(study.folder / run.folder), size_guidance={"scalars": 0})
        .Reload()
        .Scalars("train/loss")
        for run in study.groups[0].rows[0].runs
    ]
    assert [step for _, step, _ in mean] == [event.step for event in seeds[0]] == [1, 2]
    for i, events in enumerate(zip(*seeds, strict=True)):
        values = [event.value for event in events]
        assert [low[i][2], mean[i][2], high[i][2]] == pytest.approx(
            [min(values), sum(values) / 2, max(values)], rel=1e-6
        )


def test_dashboard_has_the_runs_categories_and_the_bands(ask):
    categories = {found["title"]: found for found in ask("plugin/custom_scalars/layout")["category"]}
    assert set(categories) == {"Accuracy", "Speed", "Numerics", "Memory", "Seeds of mlp on digits"}
    charts = {
        chart["title"]: chart["margin"]["series"] for chart in categories["Seeds of mlp on digits"]["chart"]
    }
    assert {"training loss", "validation loss", "loss scale"} <= set(charts)
    # of several series TensorBoard calls all other runs' tags missing
    assert all(len(chart) == 1 for chart in charts.values())
    tags = ask("plugin/scalars/tags")
    drawn = {
        series[part] for chart in charts.values() for series in chart for part in ("value", "lower", "upper")
    }
    assert drawn == set(tags["_report/fp32-dense"]) | set(tags["_report/amp-dense"])
    assert not tags.get("_report")
