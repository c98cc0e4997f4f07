"""Two checkpoints: `last.ckpt` to continue from, and `best.ckpt` by the validation metric. Both load into the plain model."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint
from torch import nn

from mpx.errors import UserError
from mpx.runs.checkpoint_writer import CheckpointWriter
from mpx.runs.folder import CHECKPOINTS
from mpx.runs.weights import read_tensors, refuse_other_model

REQUIRED = {  # what Lightning needs to continue
    "state_dict": dict, "loops": dict, "optimizer_states": list, "lr_schedulers": list, "global_step": int,
    "pytorch-lightning_version": str,
}  # fmt: skip


class Best(ModelCheckpoint):
    """Writes `best.ckpt` after each epoch whose validation is the best so far."""

    def __init__(self, folder: Path, monitor: str, mode: str):
        super().__init__(
            dirpath=folder / CHECKPOINTS,
            filename="best",
            monitor=monitor,
            mode=mode,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
            auto_insert_metric_name=False,
        )
        self.path = folder / CHECKPOINTS / "best.ckpt"
        self._validated = False

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._validated:
            super().on_train_epoch_end(trainer, pl_module)
        self._validated = False

    @property
    def saved_at(self) -> int:
        """The optimizer step of the newest best.ckpt; 0 if there is none."""
        return self._last_global_step_saved

    def forget(self, trainer: pl.Trainer) -> None:
        """Start the search anew. After pruning, a dense checkpoint no longer counts."""
        self.best_model_score = None
        self.best_k_models = {}
        self.kth_best_model_path = self.best_model_path = ""
        self.kth_value = torch.tensor(float("-inf") if self.mode == "max" else float("inf"))


class Last(Checkpoint):
    """Writes `last.ckpt` after every epoch, and within an epoch every `every` optimizer steps (None: never).

    ModelCheckpoint(save_last=True) writes last.ckpt only together with a new best. Within an epoch, only a batch on which the optimizer
    stepped is followed by a checkpoint, which holds no accumulated gradients, and never the epoch's last batch.
    """

    def __init__(self, folder: Path, every: int | None, best: Best, writer: CheckpointWriter):
        self.path, self.every, self.best, self.writer = folder / CHECKPOINTS / "last.ckpt", every, best, writer
        self._saved_at = 0

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if self.every is not None and step % self.every == 0 and step != self._saved_at and not trainer.is_last_batch:
            self._saved_at = step
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls `best` immediately before."""
        if self.best.saved_at != trainer.global_step:
            trainer.save_checkpoint(self.path)
        elif trainer.is_global_zero:
            self.writer.link(self.path, to=self.best.path)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.writer.wait()


class History(Callback):
    """Checks the checkpoint that a run continues from, and keeps the list of steps at which the run was continued.

    pruned: the layers that were pruned in the checkpoint. pruned_by: their pattern and recipe; None if the checkpoint does not say.
    """

    def __init__(self, resume_from: Path | None, model: nn.Module, optimizer: str):
        self.steps: list[int] = []
        self.pruned: set[str] = set()
        self.pruned_by: tuple[str, str] | None = None
        if resume_from is not None:
            checkpoint = read_checkpoint(resume_from, model)
            _refuse_other_optimizer(resume_from, checkpoint["optimizer_states"], optimizer)
            self.steps = [*checkpoint.get("mpx", {}).get("resumed_from_steps", []), checkpoint["global_step"]]
            pruning = checkpoint.get("callbacks", {}).get("Pruning", {})
            self.pruned, self.pruned_by = set(pruning.get("masks", ())), pruning.get("by")

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["mpx"] = {"resumed_from_steps": self.steps}


def read_checkpoint(path: Path, model: nn.Module, key: str = "ckpt_path") -> dict[str, Any]:
    """Read the checkpoint in `path` without running code from it.

    Raises UserError, which names the setting `key`, where it is unreadable, not mpx's, or of another model.
    """
    checkpoint = read_tensors(path, key)
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(key), kind) for key, kind in REQUIRED.items()):
        raise UserError(
            f"{key}={path} is no training checkpoint of mpx: it has no model and training state. Use a last.ckpt that mpx wrote."
        )
    refuse_other_model(f"{key}={path}", checkpoint["state_dict"], model.state_dict())
    return checkpoint


def _refuse_other_optimizer(path: Path, states: list[dict[str, Any]], ours: str) -> None:
    settings = states[0]["param_groups"][0] if states else {}
    theirs = next((name for name, own in (("adamw", "betas"), ("sgd", "momentum")) if own in settings), ours)
    if theirs != ours:
        raise UserError(f"ckpt_path={path} was trained with optimizer={theirs}, this command has optimizer={ours}. Use optimizer={theirs}.")
