"""Log a run's scalars while it trains, and stop it if its loss is no longer finite."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from mpx.errors import Diverged
from mpx.record.files import CurveFile
from mpx.runs import signals
from mpx.training.diagnosis import diagnosis, place
from mpx.training.loss import loss_in

EVENTS = "events.out.tfevents.*"


class Waiting:
    """Stands for the writer of events until the run begins."""

    def __init__(self, logger: "RunLogger"):
        self._logger = logger

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self._logger.later, name)


class RunLogger(TensorBoardLogger):
    """Writes events directly into the run's folder, so that TensorBoard names the run after it, and curves.csv beside them.

    purge_step: the first step that an interrupted part may have logged and this part logs again; 0 for a new run.

    A signal waits until its methods have written: KeyboardInterrupt amid a call of the queue that the writer's thread reads would leave a
    wrong count there, by which the thread ends with a traceback.
    """

    def __init__(self, folder: Path, purge_step: int):
        super().__init__(save_dir=folder, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._folder, self._purge_step = folder, purge_step
        self._curves: CurveFile | None = None  # the run has not begun
        self._waiting: list[Callable[[], Any]] = []  # what a module of the user's own logs before

    def begin(self) -> None:
        """Open curves.csv, and log what has waited."""
        put_events_first(self._folder)
        self._curves = CurveFile(self._folder, self._purge_step)
        waiting, self._waiting = self._waiting, []
        with signals.held():
            for log in waiting:
                log()

    @property
    def experiment(self) -> Any:
        """The writer of events. Before the run has begun, when its folder must not be touched, one that waits; on further processes
        Lightning's, which does nothing."""
        return Waiting(self) if self._curves is None and rank_zero_only.rank == 0 else super().experiment

    def later(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call this method of the writer when the run begins."""
        self._waiting.append(lambda: getattr(self.experiment, name)(*args, **kwargs))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log everything but `epoch`, which Lightning adds to the values of every epoch."""
        if self._curves is None:
            self._waiting.append(partial(self.log_metrics, metrics, step))
            return
        with signals.held():
            super().log_metrics({tag: value for tag, value in metrics.items() if tag != "epoch"}, step)
            self._curves.append(metrics, step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing with what a module has saved. mpx writes the settings of the run, once it has begun."""

    def finalize(self, status: str) -> None:
        """After fit and after test. The file stays open for the final values."""
        self.flush()

    def flush(self) -> None:
        """Write out the events. A run that has not begun, and a process of it that is not the first, has none."""
        if self._curves is not None:
            with signals.held():
                self.experiment.flush()

    def close(self) -> None:
        with signals.held():
            self.experiment.close()
            self._curves.close()

    def save(self) -> None:
        """Do nothing. Lightning would write an empty hparams.yaml, but config.yaml and result.json hold the settings."""


def put_events_first(folder: Path) -> None:
    """Rename event files that would not come before those of a writer that is made now.

    Their names begin with a time in seconds, and TensorBoard reads them by name: after the clock went back, or in the same second, it would
    not see that a continued run logs steps again.
    """
    files, now = sorted(folder.glob(EVENTS)), int(time.time())
    for number, file in enumerate(files):
        *words, written, rest = file.name.split(".", 4)
        if int(written) > (latest := now - len(files) + number):
            file.rename(folder / ".".join([*words, f"{latest:010d}", rest]))


Source = Callable[[], dict[str, float | None]]


@dataclass(frozen=True)
class Due:
    """The values to log for one step, as copies on the device. The event is done when they can be read; on a CPU it is None."""

    step: int
    loss: torch.Tensor | None
    lr: float | torch.Tensor | None  # None: the optimizer has none
    sound: torch.Tensor | None
    event: torch.cuda.Event | None


class Scalars(Callback):
    """Logs loss, learning rate and `per_step` every `every` steps, and `per_epoch` at the end of each epoch. Where batches are accumulated,
    it counts batches, and logs at the end of the step: a value logged within a step would be logged again after an interruption.

    On a GPU the values of a step are read some steps later, when the step has finished, on a stream of their own. The host waits for the
    device only at the end of an epoch, after validation has been queued, so that the device always has work. With several processes the
    values are read at once, because all processes decide together whether to stop.

    Raises Diverged with `advice` if the loss was not finite at any step, and Diverged with the text that `trouble` returns, if any.
    """

    def __init__(self, every: int, *, per_step: Source, per_epoch: Source, trouble: Callable[[], str | None], advice: str):
        self.every, self.per_step, self.per_epoch, self.trouble, self.advice = every, per_step, per_epoch, trouble, advice
        self._sound: torch.Tensor | None = None  # on the device: whether every loss so far was finite
        self._clean: torch.Tensor | None = None  # on the device: batches before the first loss that was not
        self._first = (0, 0)  # the epoch and batch at which this process began
        self._due: Due | None = None
        self._wanted = False  # since a batch of the present step
        self._step = 0  # the optimizer step of the batch before
        self._aside: Any = nullcontext()  # the stream that values are read on

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = loss_in(outputs)
        if loss is not None:
            self._judge(torch.isfinite(loss), (trainer.current_epoch, batch_idx))
        if self._due is not None and self._due.event.query():
            self._report(trainer)
        before, self._step = self._step, trainer.global_step
        self._wanted |= (batch_idx + 1) % self.every == 0
        if (self._wanted and self._step != before) or trainer.is_last_batch:
            self._wanted = False
            self._report(trainer)
            self._note(trainer, loss)
        if self._due is not None and self._due.event is None:
            self._report(trainer)

    def _judge(self, finite: torch.Tensor, place: tuple[int, int]) -> None:
        """finite: whether this batch's loss is."""
        if self._sound is None:
            self._first, self._sound, self._clean = place, finite, finite.long()
        else:
            self._sound = self._sound & finite
            self._clean += self._sound

    def _note(self, trainer: pl.Trainer, loss: torch.Tensor | None) -> None:
        """Copy the values: the next step overwrites the loss and the learning rate."""
        rate, event = trainer.optimizers[0].param_groups[0].get("lr"), None
        rate = rate.clone() if isinstance(rate, torch.Tensor) else rate
        loss = None if loss is None else trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")  # over all processes
        if trainer.strategy.root_device.type == "cuda" and trainer.world_size == 1:
            event = torch.cuda.Event()
            event.record()
            if isinstance(self._aside, nullcontext):
                self._aside = torch.cuda.stream(torch.cuda.Stream())
        self._due = Due(trainer.global_step, loss, rate, self._sound, event)

    def _report(self, trainer: pl.Trainer) -> None:
        """Log the noted values, if any. Waits until the device has computed them."""
        due, self._due = self._due, None
        if due is None:
            return
        if due.event is not None:
            due.event.synchronize()
        with self._aside if due.event is not None else nullcontext():
            self._stop_unless(due.sound, trainer, due.step)
            known = due.loss is not None and "train/loss" not in trainer.callback_metrics  # which a module of the user's own may log
            loss = due.loss.item() * trainer.accumulate_grad_batches if known else None
            lr = None if due.lr is None else float(due.lr)
            self._log(trainer, {"train/loss": loss, "train/lr": lr}, due.step)
            self._log(trainer, self.per_step(), due.step)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._report(trainer)
        self._stop_unless(self._sound, trainer, trainer.global_step)
        self._log(trainer, self.per_epoch(), trainer.global_step)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write out what a run that continues from this checkpoint will not log again.

        SummaryWriter would keep it in memory for two minutes, in which a kill would lose it.
        """
        self._report(trainer)
        if trainer.logger is not None:
            trainer.logger.flush()

    def _stop_unless(self, sound: torch.Tensor | None, trainer: pl.Trainer, step: int) -> None:
        if trainer.strategy.reduce_boolean_decision(sound is not None and not sound, all=False):  # all ranks stop when one must
            lr, clean = trainer.optimizers[0].defaults.get("lr", math.nan), trainer.strategy.reduce(self._clean, reduce_op="min")
            where = place(trainer, self._first, int(clean))
            raise Diverged(
                f"the loss became infinite or NaN by step {step} (epoch {trainer.current_epoch}, optimizer.lr={lr:.3g}). "
                f"{diagnosis(trainer, where)} {self.advice}"
            )
        if (trouble := self.trouble()) is not None:
            raise Diverged(trouble)

    def _log(self, trainer: pl.Trainer, values: dict[str, float | None], step: int) -> None:
        if trainer.logger is not None:
            trainer.logger.log_metrics({tag: value for tag, value in values.items() if value is not None}, step=step)
