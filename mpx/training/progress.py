"""Show the progress of a run: one line per epoch and, on a terminal, a bar for the present epoch below
them. Elsewhere a long epoch has lines of its own.
"""

import sys
import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mpx.data.tasks import loss_in
from mpx.measure.throughput import Throughput
from mpx.private.lightning import BarFromOne
from mpx.system.printing import number, rate

SILENT_S = 30.0  # without a bar, the longest time between two lines
SHOWN = ("accuracy", "perplexity", "mse", "map", "f1")  # metrics of a validation


class EpochLines(Callback):
    """Prints `epoch 3/20  loss 0.412  val accuracy 0.957  1,234 samples/s` after each epoch. within: also
    `epoch 3/20  batch 120/1,563  loss 0.412` after each SILENT_S seconds of an epoch.

    The loss is that of the first process. In a job of Slurm, the others may have no such callback, so a mean
    over all would never end.
    """

    def __init__(self, throughput: Throughput, metric: str | None, *, within: bool):
        self.throughput, self.metric, self.within = throughput, metric, within
        self._printed = time.monotonic()
        self._loss: Tensor | None = None
        self._validated = False  # in this epoch

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loss = loss_in(outputs)
        if self.within and trainer.is_global_zero and time.monotonic() - self._printed >= SILENT_S:
            self._print(trainer, [f"batch {batch_idx + 1:,}/{trainer.num_training_batches:,}"], [])

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        values = trainer.callback_metrics if self._validated else {}  # of an earlier epoch
        self._validated = False
        parts = [
            f"val {name} {values[f'val/{name}'].item():.4f}"
            for name in SHOWN
            if f"val/{name}" in values.keys() - {self.metric}
        ]
        parts += (
            [f"{self.metric} {number(values[self.metric].item(), '#.4g')}"] if self.metric in values else []
        )
        if (speed := self.throughput.samples_per_s) is not None:
            parts.append(f"{rate(speed)} samples/s")
        self._print(trainer, [], parts)

    def _print(self, trainer: pl.Trainer, before: list[str], after: list[str]) -> None:
        """before, after: the loss."""
        self._printed = time.monotonic()
        parts = [f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", *before]
        if self._loss is not None:
            parts.append(f"loss {self._loss.item() * trainer.accumulate_grad_batches:.4f}")
        print("  ".join(parts + after), flush=True)


def progress(requested: str, throughput: Throughput, metric: str | None = None) -> list[Callback]:
    """requested: auto, bar, lines or off. metric: a project's own, which is shown after each epoch."""
    if requested == "auto":
        requested = "bar" if sys.stdout.isatty() else "lines"
    if requested == "off":
        return []
    bar = [BarFromOne()] if requested == "bar" else []
    return [EpochLines(throughput, metric, within=not bar), *bar]
