"""Show the progress of a run: one line per epoch and, on a terminal, a bar for the present epoch below the lines."""

import sys
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mpx.private.lightning import described_bar
from mpx.training.loss import loss_in


class EpochLines(Callback):
    """Prints `epoch 3/20  loss 0.412  val accuracy 0.957  1,234 samples/s` after each epoch."""

    def __init__(self, throughput: Any, metric: str | None = None):
        self.throughput, self.metric = throughput, metric
        self._loss: Tensor | None = None

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._loss = loss_in(outputs)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        values = trainer.callback_metrics
        parts = [f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"]
        parts += [f"loss {self._loss.item():.4f}"] if self._loss is not None else []
        parts += [f"val {name} {values[f'val/{name}'].item():.4f}" for name in ("accuracy", "perplexity") if f"val/{name}" in values]
        parts += [f"{self.metric} {values[self.metric].item():.4f}"] if self.metric in values else []
        if (rate := self.throughput.samples_per_s) is not None:
            parts.append(f"{rate:,.0f} samples/s")
        print("  ".join(parts), flush=True)


def _from_one(description: str, epoch: int, epochs: int) -> str:
    """Lightning's description of an epoch, counted from 1 as in the lines."""
    return description.replace(f"Epoch {epoch}/{epochs - 1}", f"epoch {epoch + 1}/{epochs}")


def progress(wish: str, throughput: Any, metric: str | None = None) -> list[Callback]:
    """wish: auto, bar, lines or off. metric: a project's own, which is shown after each epoch."""
    if wish == "auto":
        wish = "bar" if sys.stdout.isatty() else "lines"
    lines = EpochLines(throughput, metric)
    return {"bar": [lines, described_bar(_from_one)], "lines": [lines], "off": []}[wish]
