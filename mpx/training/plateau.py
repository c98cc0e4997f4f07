"""Have a continued run take the steps of a project's ReduceLROnPlateau that Lightning leaves out."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from mpx.private.lightning import let_plateaus_step


class PlateauStep(Callback):
    """Lightning saves a checkpoint before ReduceLROnPlateau sees the metric of the epoch, or of the step (`interval: step`). A run that
    continues has no value of that metric, and leaves the step out. So the checkpoint holds the value, and the step is taken before the
    first batch. Lightning also leaves out the step at the end of an epoch within which the run continues, and, with `strict: False`, all
    steps until the metric is logged again, for which the checkpoint holds its newest value."""

    def __init__(self) -> None:
        self._interval: str | None = None  # an epoch or a step has ended, and its step of the scheduler is yet to be taken
        self._count = self._step = 0  # epochs, or batches of this epoch; optimizer steps up to the newest batch
        self._values: dict[int, Tensor] = {}  # by the scheduler's number: of the checkpoint that the run continues
        self._newest: dict[str, Tensor] = {}  # by the metric's name: the same

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        stepped = trainer.global_step != self._step and pl_module.automatic_optimization
        self._interval, self._count, self._step = "step" if stepped else None, batch_idx + 1, trainer.global_step

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls this before it saves. After an epoch that max_steps cut off, or in manual optimization, no step comes."""
        self._interval = "epoch" if trainer.is_last_batch and pl_module.automatic_optimization else None
        self._count = trainer.current_epoch + 1
        if self._interval and self._due(trainer):
            let_plateaus_step(trainer)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._interval = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._interval = None

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """A run with no step left does not start to train: its values stay."""
        checkpoint["plateau"] = self._due(trainer) if self._interval else self._values
        monitors = {config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau}
        known = {name: value.detach().cpu() for name, value in trainer.callback_metrics.items() if name in monitors}
        checkpoint["plateau_metrics"] = self._newest | known

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._values, self._newest = checkpoint.get("plateau", {}), checkpoint.get("plateau_metrics", {})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step
        for number, value in self._values.items():
            pl_module.lr_scheduler_step(trainer.lr_scheduler_configs[number].scheduler, value.to(pl_module.device))
        for name, value in self._newest.items():
            trainer.callback_metrics.setdefault(name, value.to(pl_module.device))
        self._values, self._newest = {}, {}

    def _due(self, trainer: pl.Trainer) -> dict[int, Tensor]:
        found = {}
        for number, config in enumerate(trainer.lr_scheduler_configs):
            steps = config.reduce_on_plateau and config.interval == self._interval and self._count % config.frequency == 0
            if steps and (value := trainer.callback_metrics.get(config.monitor)) is not None:
                found[number] = value.detach().cpu()
        return found
