"""Have a continued run take the step of a project's ReduceLROnPlateau that Lightning leaves out."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mpx.private.lightning import let_plateaus_step


class PlateauStep(Callback):
    """Lightning saves the checkpoint of an epoch's end before ReduceLROnPlateau sees the epoch's metric. A run that continues has no value
    of that metric, and leaves the step out. So the checkpoint holds the value, and the step is taken before the first batch. Lightning also
    leaves out the step at the end of an epoch within which the run continues."""

    def __init__(self) -> None:
        self._ended = False  # the epoch has, and its step is yet to be taken
        self._values: dict[int, Tensor] = {}  # by the scheduler's number: of the checkpoint that the run continues

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls this before it saves. After an epoch that max_steps cut off, or in manual optimization, no step comes."""
        self._ended = trainer.is_last_batch and pl_module.automatic_optimization
        if self._ended and self._due(trainer):
            let_plateaus_step(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ended = False

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ended = False

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """A run with no step left does not start to train: its values stay."""
        checkpoint["plateau"] = self._due(trainer) if self._ended else self._values

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._values = checkpoint.get("plateau", {})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for number, value in self._values.items():
            pl_module.lr_scheduler_step(trainer.lr_scheduler_configs[number].scheduler, value.to(pl_module.device))
        self._values = {}

    def _due(self, trainer: pl.Trainer) -> dict[int, Tensor]:
        found = {}
        for number, config in enumerate(trainer.lr_scheduler_configs):
            steps = config.reduce_on_plateau and config.interval == "epoch" and (trainer.current_epoch + 1) % config.frequency == 0
            if steps and (value := trainer.callback_metrics.get(config.monitor)) is not None:
                found[number] = value.detach().cpu()
        return found
