"""Two checkpoints: `last.ckpt` to continue from, and `best.ckpt` by the validation metric. Both load into the plain model."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, Checkpoint, ModelCheckpoint
from torch import nn

from mpx.errors import UserError
from mpx.runs import signals
from mpx.runs.checkpoint_writer import CheckpointWriter
from mpx.runs.folder import CHECKPOINTS

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
    """Writes `last.ckpt` after every epoch, and within an epoch every `every` optimizer steps (None: never) and when a signal says that
    the run must go, which it then does.

    ModelCheckpoint(save_last=True) writes last.ckpt only together with a new best. Within an epoch, only a batch on which the optimizer
    stepped is followed by a checkpoint, which holds no accumulated gradients, and never the epoch's last batch.
    """

    def __init__(self, folder: Path, every: int | None, best: Best, writer: CheckpointWriter):
        self.path, self.every, self.best, self.writer = folder / CHECKPOINTS / "last.ckpt", every, best, writer
        self._step = 0  # the optimizer step of the batch before

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        before, self._step = self._step, trainer.global_step
        if self._step == before or trainer.is_last_batch:
            return
        must_go = _must_go(trainer)
        if must_go or (self.every is not None and self._step % self.every == 0):
            trainer.save_checkpoint(self.path)
        if must_go:
            self._go(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls `best` immediately before."""
        if self.best.saved_at != trainer.global_step:
            trainer.save_checkpoint(self.path)
        elif trainer.is_global_zero:
            self.writer.link(self.path, to=self.best.path)
        if _must_go(trainer, now=True):
            self._go(trainer)

    def _go(self, trainer: pl.Trainer) -> None:
        """End the run, all its processes after the checkpoint is on the disk: who starts them may kill all when the first has ended."""
        self.writer.wait()
        trainer.strategy.barrier()
        raise SystemExit(signals.TERMINATED)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.writer.wait()


def _must_go(trainer: pl.Trainer, *, now: bool = False) -> bool:
    """Whether a signal has told this process to end, or any other of the run, which all have to save at the same step.

    Several processes ask one another every `log_every_n_steps` steps, when they wait for one another anyway, and where `now` is set.
    """
    if trainer.world_size == 1:
        return signals.asked()
    due = now or trainer.global_step % trainer.log_every_n_steps == 0
    return due and trainer.strategy.reduce_boolean_decision(signals.asked(), all=False)


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
    checkpoint = _read(path, key)
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(key), kind) for key, kind in REQUIRED.items()):
        raise UserError(
            f"{key}={path} is no training checkpoint of mpx: it has no model and training state. Use a last.ckpt that mpx wrote."
        )
    _refuse_other_model(f"{key}={path}", checkpoint["state_dict"], model.state_dict())
    return checkpoint


def _refuse_other_optimizer(path: Path, states: list[dict[str, Any]], ours: str) -> None:
    settings = states[0]["param_groups"][0] if states else {}
    theirs = next((name for name, own in (("adamw", "betas"), ("sgd", "momentum")) if own in settings), ours)
    if theirs != ours:
        raise UserError(f"ckpt_path={path} was trained with optimizer={theirs}, this command has optimizer={ours}. Use optimizer={theirs}.")


def load_weights(path: Path, model: nn.Module, key: str) -> None:
    """Load the weights in `path`, a checkpoint or a plain state_dict, into `model`.

    Raises UserError, which names the setting `key`, where the file is unreadable or its weights are of another model.
    """
    found = _read(path, key)
    weights = found.get("state_dict", found) if isinstance(found, dict) else {}
    if not weights or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{key}={path} holds no weights. Give a checkpoint of mpx, or a saved state_dict.")
    _refuse_other_model(f"{key}={path}", weights, model.state_dict())
    model.load_state_dict(weights)


def _read(path: Path, key: str) -> Any:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip archive, which every checkpoint is")
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"{key}={path} holds something other than tensors and plain values; it was not loaded.") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{key}={path} cannot be read, it is damaged or no checkpoint ({_first(error)}). Use another checkpoint."
        ) from error


def _refuse_other_model(given: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for key in (*ours, *theirs):
        got = tuple(theirs[key].shape) if key in theirs else "missing"
        expected = tuple(ours[key].shape) if key in ours else "missing"
        if got != expected:
            raise UserError(
                f"{given} is a checkpoint of another model: {key} is {got} there and {expected} in this one. "
                "Use the model= and data= that it was trained with."
            )


def _first(error: BaseException) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split("\n")[0].split())[:160]
