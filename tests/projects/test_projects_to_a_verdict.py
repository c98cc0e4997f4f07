"""Three public projects' shapes, through precisions and sparsity of a study, to a verdict, with no change in
their code.
"""

import json
import os
from pathlib import Path

import pytest
from processes import Fork
from started import start

from mpx.compare.__main__ import main as compare

PROJECTS = {
    "gan": [
        "module._target_=own_projects.GAN",
        "datamodule._target_=own_projects.Blobs",
        "metric=val_distance",
        "metric_goal=min",
    ],
    "unet": [
        "module._target_=own_projects.UNet",
        "datamodule._target_=own_projects.Blobs",
        "metric=val/dice",
    ],
    "lm": ["module._target_=own_projects.TransformerLM", "metric=val_perplexity", "metric_goal=min"],
}
GRID = [
    "precision=fp32,amp,amp_bf16",
    "sparsity=dense,2of4",
    "seed=0,1",
    "trainer.max_epochs=2",
    "trainer.progress=off",
]
WORDS = {"gan": "val distance", "unet": "val dice", "lm": "val perplexity"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTS)
def test_a_study_of_a_project(tmp_path, name):
    words = ["-m", *PROJECTS[name], *GRID, f"study={name}"]
    sweep = Fork(
        *words,
        folder=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[at]) for at in (2, 1)])},
    )
    assert sweep.wait() == 0, sweep.out + sweep.err
    records = [json.loads(file.read_text()) for file in tmp_path.glob(f"outputs/{name}/*/seed*/result.json")]
    assert [record["status"] for record in records] == ["completed"] * 12
    assert all(
        record["sparsity"]["verified"] for record in records if record["setting"]["sparsity"] == "2of4"
    )
    done = start(compare, tmp_path, f"study={name}", "margin=0.5")
    assert done.code == 0, done.err
    kind = "no loss of" if name == "unet" else "no worse"
    assert f"{kind} {WORDS[name].split()[1]}" in done.words  # shown or not, with two seeds
    report = (tmp_path / "outputs" / name / "report.md").read_text()
    relative = "50 % of the control's" if name != "unet" else "0.5"
    assert f"Compared by {WORDS[name]}, margin {relative}" in report
