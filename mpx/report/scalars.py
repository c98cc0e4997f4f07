"""TensorBoard scalars while training, and the check that the loss is still a number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger

from mpx.errors import Diverged


class RunLogger(TensorBoardLogger):
    """Events right in the run's folder, so that TensorBoard names the run after it.

    purge_step: first step whose events a cut-off part wrote and the resumed one writes again.
    """

    def __init__(self, folder: Path, purge_step: int | None):
        super().__init__(save_dir=folder, name="", version="", default_hp_metric=False, purge_step=purge_step)

    def finalize(self, status: str) -> None:
        """Lightning calls this after fit and again after test; the one file stays open for the final values."""
        self.experiment.flush()

    def close(self) -> None:
        self.experiment.close()

    def save(self) -> None:
        """Lightning would write an empty hparams.yaml here; config.yaml and result.json hold the settings."""


Source = Callable[[], dict[str, float | None]]


class Scalars(Callback):
    """Logs loss and learning rate every `every` steps, and `sources` at the end of each epoch; only then waits for the device.

    A loss that was not finite at any step in between ends the run: Diverged, with `advice`; so does what `trouble` says, if anything.
    """

    def __init__(self, every: int, *, per_step: Source, per_epoch: Source, trouble: Callable[[], str | None], advice: str):
        self.every, self.per_step, self.per_epoch, self.trouble, self.advice = every, per_step, per_epoch, trouble, advice
        self._broken: torch.Tensor | None = None  # device flag: a loss so far was infinite or NaN

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs["loss"]
        bad = ~torch.isfinite(loss)
        self._broken = bad if self._broken is None else self._broken | bad
        if (batch_idx + 1) % self.every == 0 or trainer.is_last_batch:
            self._stop_if_broken(trainer)
            lr = float(trainer.optimizers[0].param_groups[0]["lr"])
            self._log(trainer, {"train/loss": loss.item(), "train/lr": lr} | self.per_step())

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_broken(trainer)
        self._log(trainer, self.per_epoch())

    def _stop_if_broken(self, trainer: pl.Trainer) -> None:
        if trainer.strategy.reduce_boolean_decision(bool(self._broken), all=False):  # all ranks stop when one must
            lr = trainer.optimizers[0].defaults["lr"]
            raise Diverged(
                f"the loss became infinite or NaN by step {trainer.global_step} (epoch {trainer.current_epoch}, optimizer.lr={lr:.3g}). "
                f"{self.advice}"
            )
        if (trouble := self.trouble()) is not None:
            raise Diverged(trouble)

    def _log(self, trainer: pl.Trainer, values: dict[str, float | None]) -> None:
        if trainer.logger is not None:
            trainer.logger.log_metrics({tag: value for tag, value in values.items() if value is not None}, step=trainer.global_step)
