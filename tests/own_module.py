"""A LightningModule of a user with dict batches and several networks, in an ordinary Trainer."""

import json
from copy import deepcopy

import pytorch_lightning as pl
import torch
from silent import silent_trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Module(pl.LightningModule):
    """Two networks, none of them called `model`, and batches that are dictionaries."""

    def __init__(self, schedule=None):
        super().__init__()
        self.encoder, self.head, self.schedule = nn.Linear(16, 32), nn.Linear(32, 4), schedule
        self.rates = []

    def loss(self, batch):
        return cross_entropy(self.head(self.encoder(batch["x"]).relu()), batch["y"])

    def training_step(self, batch, index):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, index):
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-3)
        if self.schedule is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"},
        }


class Target(Module):
    """As a deep Q-network: a copy of the network follows it every few steps, and no optimizer has the
    copy.
    """

    def __init__(self):
        super().__init__()
        self.target = deepcopy(self.encoder)

    def on_train_batch_end(self, outputs, batch, index):
        if self.global_step % 3 == 0:
            self.target.load_state_dict(self.encoder.state_dict())

    def configure_optimizers(self):
        return torch.optim.Adam([*self.encoder.parameters(), *self.head.parameters()], 1e-3)


class Teacher(Target):
    """As BYOL and mean teachers: the optimizer has all parameters, and the teacher's are frozen averages."""

    def __init__(self):
        super().__init__()
        self.target.requires_grad_(False)

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, index):
        for average, weight in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
            average.lerp_(weight, 0.1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


def loader(seed=0):
    made = torch.Generator().manual_seed(seed)
    samples = [{"x": torch.randn(16, generator=made), "y": torch.tensor(i % 4)} for i in range(64)]
    return DataLoader(samples, batch_size=8)


def fit(*callbacks, module=None, epochs=4, ckpt=None, **kwargs):
    torch.manual_seed(0)
    trainer = silent_trainer(max_epochs=epochs, callbacks=list(callbacks), **kwargs)
    trainer.fit(module or Module(), loader(), loader(1), ckpt_path=ckpt)
    return trainer


def record_of(folder):
    return json.loads((folder / "result.json").read_text())
