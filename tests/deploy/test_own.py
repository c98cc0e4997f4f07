"""Weights of one's own: `model= data= ckpt=`, in each kind of file, and every mistake in one line."""

import json

import pytest
import torch
from own_net import MovingNet, Net
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
    assert (row["ckpt"], row["config"]["model"]["kwargs"], row["config"]["data"]["name"]) == ("w.safetensors", {"width": 16}, "digits")
    assert "after training" not in done.out
    assert {path.name for path in (tmp_path / "w.safetensors-served").iterdir()} == {LOCK, "deploy.json"}  # no card, which is of a run


def test_out_and_what_a_model_chooses_for_training(served, tmp_path):
    """conf/model/mlp.yaml chooses an optimizer."""
    torch.save({"layers.0.weight": torch.ones(8, 64), "layers.0.bias": torch.ones(8), "layers.3.weight": torch.ones(10, 8)}, "half.pt")
    refused(served("model=mlp", "model.widths=[8]", "data=digits", "ckpt=half.pt", "out=a/b"), "is a checkpoint of another model: ")
    assert not (tmp_path / "a").exists()
    torch.save({"layers.0.weight": torch.ones(10, 64), "layers.0.bias": torch.arange(10.0)}, "w.pt")
    done = served("model=mlp", "model.widths=[]", "data=digits", "ckpt=w.pt", "out=a/b")
    assert done.code == 0, done.err
    assert "written to a/b/deploy.json" in done.words
    (row,) = rows(tmp_path / "a" / "b" / "deploy.json")
    assert row["metrics"]["test/accuracy"] == pytest.approx(0.1, abs=0.03)  # always class 9


def test_a_buffer_that_each_call_changes(served):
    torch.save(MovingNet((1, 8, 8), 10).state_dict(), "w.pt")
    done = served("model=custom", "model._target_=own_net.MovingNet", "data=digits", "ckpt=w.pt")
    refused(done, "the model changes its buffer mean at each call, also in evaluation")


MISTAKES = [
    (["run=.", "+model={widths:[8]}"], "model.widths is for weights without a run, and no model= is given. Leave it out, or give"),
    (["model=mlp", "data=digits"], "ckpt is not set. Weights of your own need model=, data= and ckpt=FILE"),
    (["ckpt=w.pt", "model=mlp"], "data is not set."),
    (["model=mlp", "data=digits", "ckpt=nowhere.pt"], "ckpt=nowhere.pt is not a file."),
    (["model=mlp", "data=digits", "ckpt=w.pt", "run=."], "model= is for weights without a run, and run= is given."),
    (["run=.", "out=x"], "out= is for weights without a run, and run= is given."),
    (["model=mlp", "data=digits", "ckpt=w.pt", "target=my.Net"], "target= is for runs. Leave it out"),
    (["model=mlp", "model.widht=3", "data=digits", "ckpt=w.pt"], "model.widht: no such key. Did you mean model.widths?"),
    (["model=resnet20", "data=text_csv", "data.path=x", "ckpt=w.pt"], "this model takes images, the data set is labelled text"),
    (["model=mlp", "data=text_csv", "ckpt=w.pt"], "data.path is not set and has no default."),
    (["model=custom", "model._target_=nosuch.Net", "data=digits", "ckpt=w.pt"], "model._target_=nosuch.Net: no module nosuch"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(case[0])[:50] for case in MISTAKES])
def test_mistakes(served, tmp_path, words, message):
    done = served(*words)
    refused(done, message)
    assert len(done.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def meta(state):
    return {name: value.to("meta") for name, value in state.items()}


def nested():
    return torch.nested.nested_tensor([torch.ones(10)], layout=torch.strided)


DAMAGED = {
    "code": (lambda state, path: torch.save({"state_dict": Code()}, path), "holds something other than tensors and plain values"),
    "a whole model": (
        lambda state, path: torch.save(torch.nn.Linear(1, 1), path),
        "Save the weights alone, as by torch.save(model.state_dict()",
    ),
    "a list": (lambda state, path: torch.save([1], path), "holds no weights."),
    "numbers for names": (lambda state, path: torch.save(dict(enumerate(state.values())), path), "holds no weights."),
    "no tensors": (lambda state, path: torch.save({"state_dict": {"out.weight": 1}}, path), "holds no weights."),
    "no values": (lambda state, path: torch.save(meta(state), path), "is missing there and ("),
    "a name too many": (lambda state, path: torch.save(state | {"x": torch.ones(1)}, path), "x is (1,) there and missing in this one."),
    "another shape": (lambda state, path: torch.save(state | {"out.bias": torch.ones(3)}, path), "out.bias is (3,) there and (10,)"),
    "sparse": (lambda state, path: torch.save(state | {"out.bias": torch.ones(10).to_sparse()}, path), "out.bias is not dense there"),
    "8 bits without scales": (lambda state, path: torch.save(state | {"out.bias": torch.ones(10).char()}, path), "has int8 as out.bias,"),
    "complex": (lambda state, path: torch.save(state | {"out.bias": torch.ones(10) * 1j}, path), "has complex64 as out.bias, which is a"),
    "not a number": (lambda state, path: torch.save(state | {"out.bias": torch.ones(10) / 0}, path), "has infinite or NaN values as out."),
    "rows of different lengths": (lambda state, path: torch.save(state | {"out.bias": nested()}, path), "out.bias is not dense there"),
    "text": (lambda state, path: path.write_bytes(b"\xff\xfe no zip"), "cannot be read, it is damaged or no checkpoint ("),
    "half a file": (lambda state, path: (torch.save(state, path), path.write_bytes(path.read_bytes()[:5000])), "cannot be read"),
}


@pytest.mark.filterwarnings("ignore:Validating sparse tensor", "ignore:Sparse invariant checks", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_or_hostile_file(served, weights, tmp_path, case):
    save, message = DAMAGED[case]
    save(weights, tmp_path / "w.pt")
    refused(served(*MODEL, "ckpt=w.pt"), message)
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


@pytest.mark.parametrize("callbacks", [3, ["Ema"], "Ema", torch.ones(2)])
def test_a_file_whose_callbacks_are_not_lightnings(served, weights, callbacks):
    """As of one's own loop, or hostile."""
    torch.save({"state_dict": weights, "callbacks": callbacks}, "w.pt")
    done = served(*MODEL, "ckpt=w.pt")
    assert done.code == 0, done.err


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b'\x08\0\0\0\0\0\0\0{"a":1} '])
def test_damaged_safetensors(served, tmp_path, content):
    (tmp_path / "w.safetensors").write_bytes(content)
    refused(served(*MODEL, "ckpt=w.safetensors"), "ckpt=w.safetensors cannot be read, it is damaged or no checkpoint (")
