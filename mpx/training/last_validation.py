"""Validate the weights with which a run ends, and see whether they change afterwards."""

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from mpx.private.lightning import put_averages_in_place
from mpx.runs.checkpoint import reached_max_steps
from mpx.runs.random_state import restore_states, states

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class LastValidation(Callback):
    """Has Lightning validate after the last step, so that `val/…` and `test/…` of a record are of the same weights.

    Lightning itself validates at the end of an epoch, and where `should_stop` ends training; not where max_steps ends it within an epoch,
    nor in an epoch that check_val_every_n_epoch leaves out. The validation belongs to the training: it counts for best.ckpt, and needs no
    further `setup` of a project, which may split its data in another way there. The random numbers that it draws leave no trace in the
    checkpoint: a run that goes on from there draws what a longer run would.
    """

    def __init__(self) -> None:
        self.step: int | None = None  # at which the newest validation was
        self._before: dict[str, Any] | None = None  # the random states before this validation

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        epochs, by_steps = trainer.current_epoch + 1, reached_max_steps(trainer)
        within = by_steps and not trainer.is_last_batch
        left_out = epochs % trainer.check_val_every_n_epoch != 0 and trainer.is_last_batch and (by_steps or epochs == trainer.max_epochs)
        if (within or left_out) and trainer.enable_validation:
            self._before = states()
            trainer.check_val_every_n_epoch = 1
            trainer.should_stop = trainer.should_stop or within

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """`Last` saves after this."""
        self.step = trainer.global_step
        if self._before is not None:
            restore_states(self._before)
            self._before = None


class SameWeights(Callback):
    """For a project, whose weights a callback may replace at the end of the training, after the newest validation.

    Lightning's StochasticWeightAveraging does so with a model without batch norms. `val/…` and `test/…` are then of different weights.
    A run that was cut off in its test has no end of a training: Lightning would test the weights before their replacement.
    """

    def __init__(self) -> None:
        self.changed = False
        self._validated: list[int | None] = []
        self._trained = False  # in this process

    def state_dict(self) -> dict[str, Any]:
        return {"validated": self._validated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validated = state_dict["validated"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._trained = True

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls this before a callback of the project puts back the weights that it validates an average of."""
        self.changed, self._validated = False, _sums(pl_module)

    def after_training(self, trainer: pl.Trainer) -> None:
        if not self._trained:
            put_averages_in_place(trainer)
        self.changed = bool(self._validated) and self._validated != _sums(trainer.lightning_module)


def _sums(module: nn.Module) -> list[int | None]:
    """Sums of the weights' bits: integers, which are the same on every device."""
    return [_sum(weight) for weight in module.parameters()]


def _sum(weight: Tensor) -> int | None:
    """None for a weight that has no bits to add: one without values, lazy, or of a tensor class of another library."""
    try:
        return int(_bits(weight.detach()).sum())
    except (RuntimeError, ValueError, TypeError):  # NotImplementedError is a RuntimeError
        return None


def _bits(weight: Tensor) -> Tensor:
    real = torch.view_as_real(weight) if weight.is_complex() else weight
    return real.view(INTEGERS[real.element_size()])
