"""Two checkpoints: `last.ckpt` to continue from, and `best.ckpt` by the validation metric. Both load into the
plain model.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import Checkpoint

from mpx.runs import signals
from mpx.runs.folder import BEST, LAST, PART
from mpx.runs.result import not_logged

# begins the key of the best epoch in checkpoints that mpx wrote with Lightning's ModelCheckpoint
OLD_BEST = "Best{"


EVERY = 1.0  # seconds, about: to ask whether a signal came, and to take back its handler


def reached_max_steps(trainer: pl.Trainer) -> bool:
    """A batch in which several optimizers step may pass it."""
    return 0 < trainer.max_steps <= trainer.global_step


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints. A file appears whole or not at all, also after a power failure."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        def write(beside: Path) -> None:
            with open(beside, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())

        _write_whole(Path(path), write)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file beside `path`, then rename it. Only one process writes here, because a run's folder is
    locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}{PART}")
    beside.unlink(missing_ok=True)  # of a killed process; it may be a second name of a whole checkpoint
    try:
        write(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _link(path: Path, beside: Path) -> None:
    try:
        os.link(path, beside)
    except OSError:  # a file system without hard links
        copyfile(path, beside)


class EndSignal:
    """Ranks ask one another about once a second whether a signal came, since all have to save at the same
    step. An answer waits for the device. With each, the ranks agree on the step after which they ask again.
    """

    def __init__(self) -> None:
        self._pace = float("inf")  # seconds for a step; until two answers have come, they ask after each step
        self._step = 0
        self._answered: float | None = None  # when the newest answer came
        self._next = 0  # the step after which to ask

    def came(self, trainer: pl.Trainer, *, now: bool = False) -> bool:
        """Call it after the same steps in all processes. now: ask at once."""
        told = signals.run.first is not None
        if trainer.world_size == 1:
            return told
        if not now and trainer.global_step < self._next:
            return False
        mine = torch.tensor([float(told), self._pace], device=trainer.strategy.root_device)
        asked, pace = trainer.strategy.reduce(mine, reduce_op="max").tolist()
        before, self._step = self._step, trainer.global_step
        earlier, self._answered = self._answered, time.monotonic()
        # nothing is known from before the first answer: a run that continues has steps of an earlier process
        if earlier is not None:
            self._pace = (self._answered - earlier) / max(1, self._step - before)
        self._next = self._step + max(1, int(EVERY / pace))
        return bool(asked)


class Checkpoints(Checkpoint):
    """Saves `last.ckpt` after an epoch and every `every_steps` optimizer steps (None: only after epochs), and
    when a signal ends the run.

    After an epoch that is not the last one, it does so only if `every_s` seconds have passed since it saved.
    If the epoch's validation is the best so far, the file has the second name `best.ckpt`. Raises
    UserError if the module has not logged `monitor`.

    A checkpoint holds no accumulated gradients. So within an epoch it follows only a batch in which the
    optimizer stepped, and never the last batch, after which the epoch's own checkpoint comes.
    """

    def __init__(
        self, folder: Path, monitor: str | None, mode: str, *, every_steps: int | None, every_s: float,
    ):  # fmt: skip
        self.last, self.best, self.monitor = folder / LAST, folder / BEST, monitor
        self.sign = 1 if mode == "max" else -1
        self.every_steps, self.every_s = every_steps, every_s
        self.score = float("-inf")  # of the best epoch, times the sign
        self._end_signal = EndSignal()
        self._validated = False  # in this epoch
        self._step = 0  # the optimizer step of the batch before
        self._saved_at = self._taken_at = time.monotonic()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["best"] = self.sign * self.score

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """A run that continues in another folder has no best.ckpt there yet."""
        if Path(str(trainer.ckpt_path)).resolve().parent == self.last.parent.resolve():
            states = checkpoint.get("callbacks", {})
            old = next((states[key]["best_model_score"] for key in states if key.startswith(OLD_BEST)), None)
            score = checkpoint.get("best", old)
            self.score = float("-inf") if score is None else self.sign * float(score)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step, self._saved_at = trainer.global_step, time.monotonic()
        signals.run.save_first(True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        signals.run.save_first(False)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        signals.run.save_first(False)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if now - self._taken_at >= EVERY:
            self._taken_at = now
            signals.run.take_back()  # a compiler may have replaced it
        before, self._step = self._step, trainer.global_step
        if self._step == before or trainer.is_last_batch or reached_max_steps(trainer):
            return
        must_end = self._end_signal.came(trainer)
        if must_end or (self.every_steps is not None and self._step % self.every_steps == 0):
            self._save(trainer)
        if must_end:
            self._end(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best, self._validated = self._validated and self._is_best(trainer), False
        ends = (
            trainer.should_stop
            or reached_max_steps(trainer)
            or trainer.current_epoch + 1 == trainer.max_epochs
        )
        due = self.every_steps is not None or time.monotonic() - self._saved_at >= self.every_s
        best, due = trainer.strategy.broadcast((best, best or ends or due))
        must_end = self._end_signal.came(trainer, now=True)
        if due or must_end:
            self._save(trainer)
        if best and trainer.is_global_zero:
            _write_whole(self.best, lambda beside: _link(self.last, beside))
        if must_end:
            self._end(trainer)

    def _is_best(self, trainer: pl.Trainer) -> bool:
        if self.monitor is None:
            return True
        if self.monitor not in trainer.callback_metrics:
            raise not_logged(self.monitor, trainer)
        score = self.sign * float(trainer.callback_metrics[self.monitor])
        better = score > self.score
        self.score = score if better else self.score
        return better

    def _save(self, trainer: pl.Trainer) -> None:
        trainer.save_checkpoint(self.last)
        self._saved_at = time.monotonic()

    def save_both(self, trainer: pl.Trainer) -> None:
        """After the training, for a model that has been pruned since, or that needed no further step."""
        for path in (self.best, self.last):
            trainer.save_checkpoint(path)

    def forget(self, trainer: pl.Trainer) -> None:
        """Start the search again. After pruning, a dense checkpoint no longer counts."""
        self.score = float("-inf")

    def _end(self, trainer: pl.Trainer) -> None:
        """All processes end together: their launcher may kill the others when the first one ends."""
        trainer.strategy.barrier()
        raise signals.run.end()
