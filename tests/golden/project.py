"""A Lightning project, as a user has it: tests/golden/run.py trains it by
`module._target_=project.Module`.
"""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Module(pl.LightningModule):
    def __init__(self, width: int = 64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 16))

    def training_step(self, batch, index):
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("val/acc", (self.net(images).argmax(1) == labels).float().mean())

    def test_step(self, batch, index):
        images, labels = batch
        self.log("test/acc", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


class Data(pl.LightningDataModule):
    def _loader(self, seed: int, shuffle: bool = False) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        samples = torch.randn(256, 32, generator=generator)
        return DataLoader(TensorDataset(samples, samples[:, :16].argmax(1)), batch_size=32, shuffle=shuffle)

    def train_dataloader(self):
        return self._loader(0, shuffle=True)

    def val_dataloader(self):
        return self._loader(1)

    def test_dataloader(self):
        return self._loader(2)
