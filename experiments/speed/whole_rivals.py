"""Whole runs of others on the images that mpx trains on: as many epochs, evaluation after each, a log,
checkpoints.

The images lie on the device, normalised once; they are not shifted or mirrored, as mpx's are. Timed from when
model and data are ready.
"""

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hand import half, recorded, searching, synchronize, training
from setups import device
from torch import Tensor
from trainers import lightning_here, lightning_module, quiet
from whole import HELD_OUT, Whole

from mpx.data.image_sets import read_mnist

LOG_EVERY = 20  # steps, as mpx
EVAL_BATCH, EVAL_BATCHES = {False: 1000, True: 4}, 2  # tiny or not, as mpx


class Images:
    """Both splits on the device, in batches; the order of an epoch is drawn there."""

    def __init__(self, whole: Whole):
        (images, labels), _ = read_mnist("fashion_mnist", Path(whole.data_root), download=False)
        x, y = images.to(device()).float().div_(255).sub_(0.286).div_(0.353), labels.to(device())
        self.train, self.held_out = (x[HELD_OUT:], y[HELD_OUT:]), (x[:HELD_OUT], y[:HELD_OUT])
        self.batch, self.steps, self.eval_batch = whole.setup.batch, whole.steps, EVAL_BATCH[whole.setup.tiny]

    def shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.train
        for index in torch.randperm(len(x), device=device()).split(self.batch)[: self.steps]:
            yield x[index], y[index]

    def evaluated(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = (part.split(self.eval_batch) for part in self.held_out)
        yield from list(zip(*parts, strict=True))[:EVAL_BATCHES]


class Rival(ABC):
    """Each `samples_per_s` is a whole run."""

    def __init__(self, whole: Whole):
        self.whole, self.note = whole, whole.about
        self.setup = replace(whole.setup, shape=[1, 28, 28], classes=10)
        self.images: Images | None = None

    def samples_per_s(self) -> float:
        self.images = self.images or Images(self.whole)
        with tempfile.TemporaryDirectory() as folder, quiet(), searching(self.setup):
            seconds = self.run(Path(folder))
        self.steps = self.whole.epochs * self.whole.steps
        return self.steps * self.setup.batch / seconds

    @abstractmethod
    def run(self, folder: Path) -> float:
        """Seconds of a whole run that keeps its files in `folder`."""

    def close(self) -> None:
        self.images = None


class HandWhole(Rival):
    """The loop tuned by hand, recorded in every run, and compiled anew with the help of the compiler's caches
    where it is `compiled`.
    """

    def __init__(self, whole: Whole, *, compiled: bool):
        super().__init__(whole)
        self.compiled = compiled

    def run(self, folder: Path) -> float:
        from torch.utils.tensorboard import SummaryWriter

        torch._dynamo.reset()  # else a later run finds the code that the first one compiled
        model, state, train_on = training(self.setup, tuned=True, compiled=self.compiled)
        synchronize()
        began = time.perf_counter()
        step = recorded(train_on, next(self.images.shuffled()))
        with SummaryWriter(folder) as writer:
            for epoch in range(self.whole.epochs):
                losses = [step(*batch).clone() for batch in self.images.shuffled()]
                for number, loss in enumerate(torch.stack(losses[::LOG_EVERY]).tolist()):
                    writer.add_scalar("train/loss", loss, epoch * len(losses) + number * LOG_EVERY)
                writer.add_scalar("val/accuracy", self.accuracy(model), epoch)
                parts = {name: part.state_dict() for name, part in state.items()}
                torch.save({"epoch": epoch} | parts, folder / "last.pt")
        synchronize()
        return time.perf_counter() - began

    @torch.no_grad()
    def accuracy(self, model: torch.nn.Module) -> float:
        kind, dtype = device().type, half(self.setup)
        model.eval()
        with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
            batches = ((x.to(memory_format=torch.channels_last), y) for x, y in self.images.evaluated())
            right = [(model(x).argmax(-1) == y).float() for x, y in batches]
        model.train()
        return torch.cat(right).mean().item()


class LightningWhole(Rival):
    """Trainer's defaults: logger, checkpoint after each epoch, progress bar, its own precision plugin."""

    def run(self, folder: Path) -> float:
        import pytorch_lightning as pl

        here = lightning_here(self.setup) | {"max_epochs": self.whole.epochs, "default_root_dir": folder}
        trainer, module = pl.Trainer(**here), lightning_module(self.setup)
        synchronize()
        began = time.perf_counter()
        held_out = Loader(self.images.evaluated, EVAL_BATCHES)
        trainer.fit(module, Loader(self.images.shuffled, self.whole.steps), held_out)
        synchronize()
        return time.perf_counter() - began


class Loader:
    def __init__(self, batches: Any, count: int):
        self.batches, self.count = batches, count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches()
