"""Weights of one's own: `model= data= ckpt=`, in each kind of file, and every mistake in one line."""

import json

import pytest
import torch
from own_net import Net
from safetensors.torch import save_file
from started import start
from test_deploy_errors import Code, refused

from mpx.deploy import backends
from mpx.deploy.__main__ import main
from mpx.runs.folder import LOCK

MODEL = ("model=custom", "model._target_=own_net.Net", "+model.kwargs.width=16", "data=digits")
SHORT = ("accelerator=cpu", "backend=eager", "batch=[4]")


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return Net((1, 8, 8), 10, width=16).state_dict()


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(backends, "BUDGET_S", 0.02)
    monkeypatch.chdir(tmp_path)
    return lambda *words: start(main, tmp_path, *words, *SHORT)


def rows(file):
    return json.loads(file.read_text())["rows"]


def test_weights_of_ones_own(served, weights, tmp_path):
    save_file(weights, "w.safetensors")
    done = served(*MODEL, "ckpt=w.safetensors")
    assert done.code == 0, done.err
    (row,) = rows(tmp_path / "w.safetensors-served" / "deploy.json")
    assert (row["ckpt"], row["config"]["model"]["kwargs"], row["config"]["data"]["name"]) == (
        "w.safetensors",
        {"width": 16},
        "digits",
    )
    assert "after training" not in done.out
    # no card, which is of a run
    assert {path.name for path in (tmp_path / "w.safetensors-served").iterdir()} == {LOCK, "deploy.json"}


def test_out_and_what_a_model_chooses_for_training(served, tmp_path):
    """conf/model/mlp.yaml chooses an optimizer."""
    torch.save(
        {
            "layers.0.weight": torch.ones(8, 64),
            "layers.0.bias": torch.ones(8),
            "layers.3.weight": torch.ones(10, 8),
        },
        "half.pt",
    )
    refused(
        served("model=mlp", "model.widths=[8]", "data=digits", "ckpt=half.pt", "out=a/b"),
        "is a checkpoint of another model: ",
    )
    assert not (tmp_path / "a").exists()
    torch.save({"layers.0.weight": torch.ones(10, 64), "layers.0.bias": torch.arange(10.0)}, "w.pt")
    done = served("model=mlp", "model.widths=[]", "data=digits", "ckpt=w.pt", "out=a/b")
    assert done.code == 0, done.err
    assert "written to a/b/deploy.json" in done.words
    (row,) = rows(tmp_path / "a" / "b" / "deploy.json")
    assert row["metrics"]["test/accuracy"] == pytest.approx(0.1, abs=0.03)  # always class 9


MISTAKES = [
    (["model=mlp", "data=digits"], "ckpt is not set. Weights of your own need model=, data= and ckpt=FILE"),
    (["model=mlp", "data=digits", "ckpt=nowhere.pt"], "ckpt=nowhere.pt is not a file."),
    (
        ["model=mlp", "data=digits", "ckpt=w.pt", "run=."],
        "model= is for weights without a run, and run= is given.",
    ),
    (
        ["model=resnet20", "data=text_csv", "data.path=x", "ckpt=w.pt"],
        "this model takes images, the data set is labelled text",
    ),
    (
        ["model=custom", "model._target_=nosuch.Net", "data=digits", "ckpt=w.pt"],
        "model._target_=nosuch.Net: no module nosuch",
    ),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(case[0])[:50] for case in MISTAKES])
def test_mistakes(served, tmp_path, words, message):
    done = served(*words)
    refused(done, message)
    assert len(done.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


DAMAGED = {
    "code": (
        lambda state, path: torch.save({"state_dict": Code()}, path),
        "holds something other than tensors and plain values",
    ),
    "a name too many": (
        lambda state, path: torch.save(state | {"x": torch.ones(1)}, path),
        "x is (1,) there and missing in this one.",
    ),
    "half a file": (
        lambda state, path: (torch.save(state, path), path.write_bytes(path.read_bytes()[:5000])),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_or_hostile_file(served, weights, tmp_path, case):
    save, message = DAMAGED[case]
    save(weights, tmp_path / "w.pt")
    refused(served(*MODEL, "ckpt=w.pt"), message)
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]
