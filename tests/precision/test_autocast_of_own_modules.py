"""A module of the user's own sees its weights as they are, at every moment of its step, and trains as with
Lightning's own precision.
"""

import pytest
import pytorch_lightning as pl
import torch
from recomputing import Recomputing
from silent import silent_trainer
from torch import nn
from torch.nn.functional import linear

import mpx

pytestmark = pytest.mark.filterwarnings("ignore")
BY_AUTOCAST = [("amp", "never"), ("amp", "always"), ("amp_bf16", "never"), ("amp_bf16", "always")]


class Adversary(pl.LightningModule):
    """Calls a layer, lets the optimizer change it, and calls it again within the same step, as a GAN calls
    its discriminator.

    clamp: the weights also change without the optimizer, as those of a Wasserstein GAN.
    """

    def __init__(self, clamp):
        super().__init__()
        self.automatic_optimization = False
        self.layer, self.clamp, self.seen = nn.Linear(32, 32), clamp, []

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.layer(batch).square().mean()
        self.manual_backward(loss)
        optimizer.step()
        if self.clamp:
            self.layer(batch)
            self.layer.weight.data.clamp_(-0.01, 0.01)
        again = self.layer(batch)
        # autocast leaves float64
        exact = linear(*(value.detach().double() for value in (batch, self.layer.weight, self.layer.bias)))
        self.seen.append(torch.allclose(again.double(), exact, rtol=0.02, atol=0.02))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 2.0)


def fit(module, batches, **precision):
    trainer = silent_trainer(accelerator="auto", devices=1, **precision)
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    return module


@pytest.mark.parametrize(("mode", "emulate"), BY_AUTOCAST)
@pytest.mark.parametrize("clamp", [False, True])
def test_a_step_sees_what_its_optimizer_has_changed(mode, emulate, clamp):
    torch.manual_seed(0)
    module = fit(Adversary(clamp), list(torch.randn(3, 8, 32)), plugins=mpx.Precision(mode, emulate=emulate))
    assert module.seen == [True] * 3


class Twice(pl.LightningModule):
    """Uses one layer three times in a step, as metric learning and decoders do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 16)

    def training_step(self, batch, index):
        return self.layer(self.layer(self.layer(batch).relu()).relu()).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def test_bf16_is_bit_for_bit_that_of_lightning():
    batches = list(torch.randn(12, 8, 16, generator=torch.Generator().manual_seed(1)))
    ours = fit(Twice(), batches, plugins=mpx.Precision("amp_bf16", emulate="never"))
    theirs = fit(Twice(), batches, precision="bf16-mixed")
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())


class Attends(Recomputing):
    """Its attention has dropout."""

    def __init__(self, reentrant, automatic):
        super().__init__(reentrant, automatic)
        self.attention, self.head = (
            nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True),
            nn.Linear(64, 8),
        )

    def block(self, x):
        return self.attention(x, x, x, need_weights=False)[0] + torch.zeros(64)


@pytest.mark.parametrize(
    ("mode", "automatic"),
    [("amp_bf16", True), ("amp_bf16", False), ("bf16_true", True), ("bf16_true", False), ("o2", True)],
)
def test_a_checkpoint_computes_the_same_again(mode, automatic):
    def weights(reentrant):
        batches = torch.randn(2, 4, 16, 64, generator=torch.Generator().manual_seed(1))
        return fit(
            Attends(reentrant, automatic), list(batches), plugins=mpx.Precision(mode, emulate="never")
        ).state_dict()

    plain = weights(None)
    for again in (weights(False), weights(True)):
        assert all(torch.equal(value, plain[name]) for name, value in again.items())
