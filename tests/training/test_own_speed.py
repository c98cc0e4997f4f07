"""What a module of the user's own may bring with it: weights that no layout takes, an optimizer without a learning rate."""

import pytest
from few_steps import FEW_STEPS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

MODULE = """
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

class Signs(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.01 * parameter.grad.sign()
        return loss

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.flat, self.deep = nn.Conv2d(1, 2, 3), nn.Conv3d(1, 1, 2)

    def training_step(self, x, index):
        return self.deep(self.flat(x)[:, None]).square().mean()

    def train_dataloader(self):
        return DataLoader(torch.ones(8, 1, 6, 6), 4)

    def configure_optimizers(self):
        return Signs(self.parameters())
"""


@pytest.fixture
def words(tmp_path, monkeypatch):
    (tmp_path / "signs_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return ["module._target_=signs_net.Net", "precision=fp32", *FEW_STEPS, "trainer.log_every_n_steps=1"]


def test_an_optimizer_without_a_learning_rate(train, words):
    ran = train(*words)
    assert ran.code == 0, ran.err
    scalars = EventAccumulator(str(ran.folder)).Reload().Tags()["scalars"]
    assert "train/loss" in scalars
    assert "train/lr" not in scalars


def test_weights_that_cannot_be_channels_last(train, words):
    ran = train(*words, "trainer.channels_last=true")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "error: trainer.channels_last=true is not possible: it is for weights of four dimensions" in ran.err
    assert ran.err.endswith("Use trainer.channels_last=auto.\n")
