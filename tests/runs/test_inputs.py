"""The user's code and the weights that a run begins with: where they have changed, a run is not silently
taken for the present one's.
"""

import sys
from pathlib import Path

import pytest
from few_steps import FEW_STEPS

from mpx.runs.inputs import inputs

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
"""
CHANGED = f"{NET}        self[1].bias.data.fill_(1)\n"
WORDS = ["model=custom", "model._target_=net_that_changes.Net", *FEW_STEPS]


def write(text):
    """As a process that starts now sees the module."""
    Path("net_that_changes.py").write_text(text)
    sys.modules.pop("net_that_changes", None)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(NET)
    yield tmp_path
    sys.modules.pop("net_that_changes", None)


def test_code_that_has_changed_since_a_finished_run(train, here):
    assert train(*WORDS).code == 0
    again = train(*WORDS, "if_exists=skip")
    assert (again.code, again.err) == (0, "")
    write(CHANGED)
    again = train(*WORDS, "if_exists=skip")
    assert again.code == 0
    assert again.err == (
        f"model._target_=net_that_changes.Net has changed since {again.folder} began: its result is of the "
        "earlier one. "
        "if_exists=overwrite repeats it.\n"
    )
    assert train(*WORDS, "if_exists=overwrite").err == ""
    assert train(*WORDS, "if_exists=skip").err == ""


def test_code_that_has_changed_since_a_run_was_cut_off(train, interrupted, here):
    interrupted(1, *WORDS)
    write(CHANGED)
    again = train(*WORDS, "if_exists=resume")
    assert again.code == 0
    assert "has changed since" in again.err
    assert again.err.endswith("began: it goes on with the present one.\n")


def test_what_a_result_depends_on(here):
    (here / "package").mkdir()
    (here / "package" / "__init__.py").write_text("")
    (here / "dense.ckpt").write_bytes(b"1")
    (here / "tokenizer").mkdir()
    (here / "tokenizer" / "tokenizer.json").write_text("{}")
    config = {
        "model": {"_target_": "package:Net.build", "name": "resnet18", "pretrained": None},
        "data": {"_target_": "torch.nn.Linear", "tokenizer": "tokenizer"},
        "sparsity": {"dense_ckpt": "dense.ckpt"},
    }
    found = inputs(config)
    assert found.keys() == {
        "model._target_=package:Net.build",
        "data.tokenizer=tokenizer",
        "sparsity.dense_ckpt=dense.ckpt",
    }
    (here / "tokenizer" / "tokenizer.json").write_text("[1]")
    (here / "dense.ckpt").write_bytes(b"2")
    assert {name for name, digest in inputs(config).items() if found[name] != digest} == set(list(found)[1:])
