"""Two checkpoints: `last.ckpt` to continue from, and `best.ckpt` by the validation metric. Both load into the plain model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint, ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn

from mpx.private.lightning import saved_at
from mpx.runs import signals
from mpx.runs.checkpoint_writer import CheckpointWriter
from mpx.runs.end_signal import EndSignal
from mpx.runs.folder import BEST, CHECKPOINTS, LAST, PREVIOUS


class Best(ModelCheckpoint):
    """Writes `best.ckpt` after each epoch whose validation is the best so far. check: called before; raises if `monitor` is not logged."""

    def __init__(self, folder: Path, monitor: str | None, mode: str, check: Callable[[pl.Trainer], None] = lambda trainer: None):
        super().__init__(
            dirpath=folder / CHECKPOINTS,
            filename="best",
            monitor=monitor,
            mode=mode,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
            auto_insert_metric_name=False,
        )
        self.path, self.check = folder / BEST, check
        self._validated = False

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """The best epoch so far of a folder that has been moved is still its best. ModelCheckpoint would let the next one replace it."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if state and Path(trainer.ckpt_path).resolve().parent == Path(self.dirpath):
            moved = {path: str(Path(self.dirpath, Path(path).name)) for path in state["best_k_models"]}
            state["dirpath"], state["best_k_models"] = self.dirpath, {moved[path]: score for path, score in state["best_k_models"].items()}
            for key in ("kth_best_model_path", "best_model_path"):
                state[key] = moved.get(state[key], state[key])

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._validated:
            self.check(trainer)
            super().on_train_epoch_end(trainer, pl_module)
        self._validated = False

    def forget(self, trainer: pl.Trainer) -> None:
        """Start the search again. After pruning, a dense checkpoint no longer counts."""
        self.best_model_score = None
        self.best_k_models = {}
        self.kth_best_model_path = self.best_model_path = ""
        self.kth_value = torch.tensor(float("-inf") if self.mode == "max" else float("inf"))


class Last(Checkpoint):
    """Writes `last.ckpt` after every epoch, and within an epoch every `every` optimizer steps (None: never). After a signal to end, it
    writes one more and ends the run.

    Until training ends, the checkpoint before stays as `previous.ckpt`, in case `last.ckpt` is damaged; `best.ckpt` is often the same file.

    ModelCheckpoint(save_last=True) writes last.ckpt only together with a new best. A checkpoint holds no accumulated gradients. So within
    an epoch it follows only a batch in which the optimizer stepped, and never the last batch, after which the epoch's own checkpoint comes.
    Where max_steps ends the training within an epoch, the last checkpoint is from within that epoch too, after its last validation. A run
    that goes on with more steps then takes the rest of its batches.
    """

    def __init__(self, folder: Path, every: int | None, best: Best, writer: CheckpointWriter):
        self.path, self.previous, self.every, self.best, self.writer = folder / LAST, folder / PREVIOUS, every, best, writer
        self._end_signal = EndSignal()
        self._step = 0  # the optimizer step of the batch before
        self._saved_at = -1  # the optimizer step of the newest checkpoint that this wrote
        self._there = False  # a whole last.ckpt

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step
        self._there = trainer.ckpt_path is not None and Path(trainer.ckpt_path) == self.path

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        before, self._step = self._step, trainer.global_step
        last = self._is_last(trainer)
        if self._step == before or trainer.is_last_batch or (last and trainer.enable_validation):
            return
        must_end = self._end_signal.came(trainer)
        if must_end or (self.every is not None and self._step % self.every == 0) or last:
            self._save(trainer)
        if must_end:
            self._end(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and self._is_last(trainer) and not trainer.is_last_batch:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls `best` immediately before. Its checkpoint of an epoch that max_steps cut off would leave out the rest of it."""
        within = self._saved_at == trainer.global_step and self._is_last(trainer)
        best = saved_at(self.best) == trainer.global_step
        if not (within or best):
            self._save(trainer)
        elif within and best and trainer.is_global_zero:
            self.writer.link(self.best.path, to=self.path)
        elif best and trainer.is_global_zero:
            self._keep_previous()
            self.writer.link(self.path, to=self.best.path)
        if self._end_signal.came(trainer, now=True):
            self._end(trainer)

    def _is_last(self, trainer: pl.Trainer) -> bool:
        """Whether max_steps ends the training. With several optimizers, a batch may take more steps than are left."""
        return 0 < trainer.max_steps <= self._step

    def _end(self, trainer: pl.Trainer) -> None:
        """End all processes of the run, once the checkpoint is on the disk: their launcher may kill all of them when the first one ends."""
        self.writer.wait()
        trainer.strategy.barrier()
        raise SystemExit(signals.TERMINATED)

    def _save(self, trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            self._keep_previous()
        trainer.save_checkpoint(self.path)
        self._saved_at = trainer.global_step

    def _keep_previous(self) -> None:
        if self._there:
            self.writer.link(self.previous, to=self.path)
        self._there = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.writer.wait()
        if trainer.is_global_zero:
            self.previous.unlink(missing_ok=True)
