"""A public project's shape, through precisions and sparsity of a study, to a verdict, with no change in its code."""

import json
import os
from pathlib import Path

import pytest
from processes import Fork
from started import start

from mpx.compare.__main__ import main as compare

PROJECT = [
    "module._target_=own_projects.UNet",
    "datamodule._target_=own_projects.Blobs",
    "metric=val/dice",
]
GRID = [
    "precision=fp32,amp,amp_bf16",
    "sparsity=dense,2of4",
    "seed=0,1",
    "trainer.max_epochs=2",
    "trainer.progress=off",
]


@pytest.mark.slow
def test_a_study_of_a_project(tmp_path):
    sweep = Fork(
        "-m", *PROJECT, *GRID, "study=unet",
        folder=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[at]) for at in (2, 1)])},
    )  # fmt: skip
    assert sweep.wait() == 0, sweep.out + sweep.err
    records = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/unet/*/seed*/result.json")]
    assert [record["status"] for record in records] == ["completed"] * 12
    assert all(
        record["sparsity"]["verified"] for record in records if record["setting"]["sparsity"] == "2of4"
    )
    done = start(compare, tmp_path, "study=unet", "margin=0.5")
    assert done.code == 0, done.err
    assert "no loss of dice" in done.words  # shown or not, with two seeds
    report = (tmp_path / "outputs" / "unet" / "report.md").read_text()
    assert "Compared by val dice, margin 0.5" in report
