"""Runs of a moment, trained once for all tests of this folder, and `deploy(...)` on them."""

import json
import shutil
from pathlib import Path

import made_data
import pytest
from few_steps import FEW_STEPS
from started import start

from mpx.deploy import backends
from mpx.deploy.__main__ import main
from mpx.train import main as train

RUNS = {
    "mlp": ("model=mlp", "model.widths=[64,32]", "sparsity=2of4"),
    "resnet": ("model=resnet20", "trainer.ema_decay=0.9"),
    "bert": (
        "model=bert_small",
        "model.hidden_size=32",
        "model.num_layers=2",
        "model.num_heads=2",
        "data=text_csv",
        "data.path={folder}/a.csv",
    ),
    "photos": (
        "model=mlp",
        "data=image_folder",
        "data.path={folder}/photos",
        "data.image_size=16",
        "data.resize=16",
        "data.batch_size=16",
    ),
    "custom": ("model=custom", "model._target_=own_net.Net", "+model.kwargs.width=16"),
    "lstm": (  # whose decoder has the embedding's weights
        "model=lstm",
        "model.hidden_size=32",
        "data=text_file",
        "data.path={folder}/a.txt",
        "data.seq_len=16",
        "trainer.ema_decay=0.9",
    ),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """runs(name) -> the folder of a run of RUNS, which tests leave as it is."""
    folder, made = tmp_path_factory.mktemp("runs"), {}
    made_data.text_csv(folder / "a.csv")
    made_data.text_file(folder / "a.txt")
    made_data.image_folder(folder / "photos")

    def run(name: str) -> Path:
        if name not in made:
            words = [
                *RUNS[name],
                *FEW_STEPS,
                "trainer.limit_test_batches=1.0",
                f"study={name}",
                "trainer.accelerator=cpu",
            ]
            done = start(train, folder, *(word.replace("{folder}", str(folder)) for word in words))
            assert done.code == 0, done.err
            (made[name],) = (path.parent for path in (folder / "outputs" / name).rglob("result.json"))
        return made[name]

    return run


@pytest.fixture
def deploy(runs, tmp_path, monkeypatch):
    """deploy(name, *overrides) -> (how it ended, its rows), on a copy of a run at
    tmp_path/outputs/s/setting/seed0.
    """
    monkeypatch.setattr(backends, "BUDGET_S", 0.02)
    folder = tmp_path / "outputs" / "s" / "setting" / "seed0"

    def run(name: str, *overrides: str):
        if not folder.exists():
            shutil.copytree(runs(name), folder)
        words = ["target=own_net.Net"] if name == "custom" else []
        done = start(
            main, tmp_path, f"run={folder.relative_to(tmp_path)}", "accelerator=cpu", *words, *overrides
        )
        file = folder / "deploy.json"
        return done, json.loads(file.read_text())["rows"] if done.code == 0 else None

    run.folder = folder
    return run
