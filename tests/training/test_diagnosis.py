"""A loss that is not finite is traced to its batch and its layer."""

import pytest
from few_steps import FEW_STEPS
from refused import assert_refused

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
    """net(name, first, init="pass"): a module whose third layer breaks after `first` batches; the word that chooses it."""
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


UNSEEN = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.unseen = nn.Parameter(torch.zeros(3))
        self.unseen.register_hook(lambda gradient: gradient * torch.nan)

    def forward(self, x):
        return super().forward(x) + (self.unseen.nan_to_num().sum() if self.training else 0)
"""


def test_weights_that_are_not_finite_after_training_though_the_results_are(train, net, tmp_path):
    word = net("unseen", 0)
    (tmp_path / "unseen.py").write_text(UNSEEN)
    ran = train(*FEW, word)
    assert (ran.code, ran.record["status"]) == (3, "diverged"), ran.err
    assert "the weights of unseen are infinite or NaN after the training, though the results are finite. Try" in ran.err


def test_weights_that_are_not_finite_before_training(train, net):
    ran = train(*FEW, net("fragile_weights", 0, "self[1].weight.data[3] = torch.nan"))
    assert_refused(ran, "model: the weights of 1.weight are infinite or NaN before the first step.")
