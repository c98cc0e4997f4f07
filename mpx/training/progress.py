"""Progress of a run: one line per epoch and, on a terminal, below them a bar for the epoch in progress."""

import sys
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, RichProgressBar


class EpochLines(Callback):
    """Prints `epoch 3/20  loss 0.412  val accuracy 0.957  1,234 samples/s` after each epoch."""

    def __init__(self, throughput: Any):
        self.throughput = throughput

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._loss = outputs["loss"]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        values = trainer.callback_metrics
        parts = [f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", f"loss {self._loss.item():.4f}"]
        parts += [f"val {name} {values[f'val/{name}'].item():.4f}" for name in ("accuracy", "perplexity") if f"val/{name}" in values]
        if (rate := self.throughput.samples_per_s) is not None:
            parts.append(f"{rate:,.0f} samples/s")
        print("  ".join(parts), flush=True)


class Bar(RichProgressBar):
    """Counts epochs from 1, as the lines do."""

    def _get_train_description(self, current_epoch: int) -> str:
        return (
            super()
            ._get_train_description(current_epoch)
            .replace(f"Epoch {current_epoch}/{self.trainer.max_epochs - 1}", f"epoch {current_epoch + 1}/{self.trainer.max_epochs}")
        )


def progress(wish: str, throughput: Any) -> list[Callback]:
    """wish: auto, bar, lines or off."""
    if wish == "auto":
        wish = "bar" if sys.stdout.isatty() else "lines"
    return {"bar": [EpochLines(throughput), Bar()], "lines": [EpochLines(throughput)], "off": []}[wish]
