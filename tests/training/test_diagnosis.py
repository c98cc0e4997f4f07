"""A loss that is not finite is traced to its batch and its layer."""

import pytest
from few_steps import FEW_STEPS

NET = """
import torch
from torch import nn

class Fragile(nn.Module):
    forwards = 0

    def forward(self, x):
        if self.training:
            Fragile.forwards += 1
        return x / (x - x) if Fragile.forwards > FIRST else x

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), Fragile(), nn.Linear(8, num_classes))
        INIT
"""
FEW = [
    "model=custom",
    *FEW_STEPS,
    "trainer.max_epochs=3",
    "trainer.limit_train_batches=4",
    "trainer.progress=off",
    "trainer.accelerator=cpu",
]


@pytest.fixture
def net(tmp_path, monkeypatch):
    """net(name, first, init="pass"): a module whose third layer breaks after `first` batches; the word that
    chooses it.
    """
    monkeypatch.chdir(tmp_path)

    def write(name, first, init="pass"):
        (tmp_path / f"{name}.py").write_text(NET.replace("FIRST", str(first)).replace("INIT", init))
        return f"model._target_={name}.Net"

    return write


@pytest.mark.parametrize(
    ("name", "first", "words"),
    [
        ("fragile_at_once", 0, "It began in batch 0 of epoch 0. Try"),  # the weights of that moment are lost
        ("fragile_later", 6, "It began in batch 2 of epoch 1. Try"),
    ],
)
def test_batch_and_layer(train, net, name, first, words):
    ran = train(*FEW, net(name, first))
    assert (ran.code, ran.record["status"]) == (3, "diverged"), ran.err
    assert words in ran.err


def test_with_a_loss_scale_the_weights_are_still_there(train, net):
    ran = train(*FEW, net("fragile_scaled", 2), "precision=amp")
    assert "It began in batch 2 of epoch 0, in 2 (Fragile). Try" in ran.err
