"""Say which means of a project's training are of a part of an epoch."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.private.lightning import logged_for_the_epoch

MAX_NAMES = 5


class ContinuedEpoch(Callback):
    """A checkpoint holds nothing of what a module has logged, so where the run continues within an epoch, Lightning's mean over that epoch
    is over the rest of it."""

    def __init__(self) -> None:
        self.first: int | None = None  # the step with which the newest means begin; None: with their epoch
        self._next: int | None = None  # the same, of the present epoch

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._next = trainer.global_step + 1

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning leaves this out in an epoch within which the run continues."""
        self._next = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        names = logged_for_the_epoch(trainer)
        self.first = self._next if names else None
        if self.first is not None and trainer.is_global_zero:
            words, epoch = ", ".join(names[:MAX_NAMES]) + ", …" * (len(names) > MAX_NAMES), trainer.current_epoch + 1
            print(f"{words}: the mean of epoch {epoch} begins with step {self.first}, where the run continued", flush=True)
