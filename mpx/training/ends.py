"""The callbacks at the beginning and at the end of a run's training."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, EarlyStopping

from mpx.errors import UserError
from mpx.runs.checkpoint import reached_max_steps
from mpx.settings.check import falls
from mpx.sparsity.callback import Pruning
from mpx.training.module import TrainingModule


class Beginning(Callback):
    """Calls `begin` once, immediately before the first batch. By then everything that a user can get wrong
    has been checked, including the checkpoint, whose parts Lightning has restored.
    """

    def __init__(self, begin: Callable[[pl.Trainer], Any]):
        self.begin, self.begun = begin, False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.ensure_begun(trainer)

    def ensure_begun(self, trainer: pl.Trainer) -> None:
        """A run that continues after its last step has no first batch."""
        if not self.begun:
            self.begun = True
            self.begin(trainer)


class LastValidation(Callback):
    """Has Lightning validate after the last step, so that `val/…` and `test/…` of a record are of the same
    weights.

    Lightning itself validates at the end of an epoch; not where max_steps ends the training within it, nor in
    an epoch that check_val_every_n_epoch leaves out.
    """

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        ends = reached_max_steps(trainer)
        within = ends and not trainer.is_last_batch
        last_epoch = trainer.is_last_batch and (ends or trainer.current_epoch + 1 == trainer.max_epochs)
        if (within or last_epoch) and trainer.enable_validation:
            trainer.check_val_every_n_epoch = 1
            trainer.should_stop = trainer.should_stop or within


class EndsEarly(EarlyStopping):
    """Ends the run when `monitor` has not improved for `patience` validations, of those after the pruning if
    it is pruned while it trains.
    """

    def __init__(self, monitor: str, mode: str, patience: int | None, pruning: Pruning | None):
        super().__init__(monitor, mode=mode, patience=patience or 3, check_on_train_epoch_end=False)
        self.pruning = pruning

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = self.stopped_epoch > 0  # a run that has ended, and continues with its test
        known = pl_module.validated if isinstance(pl_module, TrainingModule) else [self.monitor]
        if self.monitor not in known:
            raise UserError(
                f"trainer.early_stopping={self.monitor}: the validation has {', '.join(known)}. Name one of "
                "them."
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.monitor not in trainer.callback_metrics and not trainer.sanity_checking:
            from mpx.record.lightning_record import refuse_missing  # of a project, which has imported it

            refuse_missing(self.monitor, trainer, (), "trainer.early_stopping")
        pruning = self.pruning
        if pruning is None or pruning.masks.complete or pruning.recipe.after_training:
            super().on_validation_end(trainer, pl_module)

    def record(self) -> dict[str, Any]:
        """For the record of a run that it has ended."""
        ended = {"metric": self.monitor, "epochs": self.stopped_epoch + 1}
        return {"stopped_early": ended} if self.stopped_epoch else {}


def early_stopping(cfg: DictConfig, pruning: Pruning | None) -> list[Callback]:
    """That of trainer.early_stopping, if it is set."""
    name = cfg.trainer.early_stopping
    if name is None:
        return []
    goal = cfg.metric_goal if name == cfg.get("metric") else "min" if falls(name) else "max"
    return [EndsEarly(name, goal, cfg.trainer.early_stopping_patience, pruning)]
