"""Log a run's scalars while it trains, and stop it if its loss is no longer finite."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from torch import Tensor

from mpx.data.tasks import loss_in
from mpx.errors import Diverged
from mpx.runs import signals
from mpx.runs.result import CurveFile
from mpx.settings.values import as_dict


class RunLogger(TensorBoardLogger):
    """Writes events directly into the run's folder, so that TensorBoard names the run after it, and
    curves.csv beside them. What a module logs before the first batch is dropped: until then the folder may be
    that of an earlier run.

    purge_step: TensorBoard hides earlier events from this step on, which a resumed run logs again; 0 for a
    new run. A signal waits until values are written: KeyboardInterrupt within the queue of the writer's
    thread would leave a wrong count there, by which the thread ends with a traceback.
    """

    def __init__(self, folder: Path, purge_step: int):
        super().__init__(save_dir=folder, name="", version="", default_hp_metric=False, purge_step=purge_step)
        self._folder, self._purge_step = folder, purge_step
        self._curves: CurveFile | None = None  # the run has not begun, or another process writes
        self.tags: set[str] = set()  # all that was logged
        self._also: Logger | None = None

    def begin(self, also: Logger | None, setting: dict[str, Any]) -> None:
        """The run begins, in the process that writes. also: gets the same values, and the setting."""
        self._curves, self._also = CurveFile(self._folder, self._purge_step), also
        if also is not None:
            also.log_hyperparams(setting)

    @property
    def experiment(self) -> Any:
        """The writer of events, or one that does nothing."""
        return DummyLogger().experiment if self._curves is None else super().experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log everything but `epoch`, which Lightning adds to the values of every epoch."""
        if self._curves is not None:
            self.tags |= metrics.keys()
            values = {tag: value for tag, value in metrics.items() if tag != "epoch"}
            with signals.held():
                super().log_metrics(values, step)
                self._curves.append(values, step or 0)
                if self._also is not None and values:  # an epoch may have none but `epoch`
                    self._also.log_metrics(values, step)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing with what a module has saved. mpx writes the settings of the run, once it has begun."""

    def finalize(self, status: str) -> None:
        """After fit and after test. The file stays open for the final values."""
        self.flush()
        if self._also is not None:
            self._also.finalize(status)

    def flush(self) -> None:
        with signals.held():
            self.experiment.flush()

    def close(self, results: Mapping[str, float], step: int) -> None:
        """results: of the whole run, for the logger beside this one."""
        with signals.held():
            if self._also is not None:
                self._also.log_metrics(dict(results), step)
                self._also.finalize("success")
            self.experiment.close()
            if self._curves is not None:
                self._curves.close()

    def save(self) -> None:
        """Do nothing. Lightning would write an empty hparams.yaml, but config.yaml and result.json hold the
        settings.
        """


def logger_of(cfg: DictConfig, folder: Path, trial: str) -> Logger | None:
    """Lightning's logger of logger=, which mpx uses beside TensorBoard's; None if there is no other. Raises
    UserError for arguments that it does not take.
    """
    settings, name = as_dict(cfg.logger), f"{trial}-{folder.name}"
    if settings["_target_"] is None:
        return None
    from mpx.settings import target

    known = {"save_dir": str(folder), "name": name, "run_name": name}
    return target.build("logger._target_", settings, "logger", known)


Source = Callable[[], Mapping[str, float | None]]


@dataclass(frozen=True)
class Due:
    """The values to log for one step, as copies on the device. event: done when they can be read; None on a
    CPU.
    """

    step: int
    loss: Tensor | None
    lr: float | Tensor | None  # None: the optimizer has none
    losses: float | Tensor  # the sum of all so far
    event: torch.cuda.Event | None

    def ready(self) -> bool:
        return self.event is None or self.event.query()


class Scalars(Callback):
    """Logs loss, learning rate and `per_step` every `every` batches, at the end of a step, and `per_epoch` at
    the end of each epoch: a value logged within a step would be logged again after an interruption.

    On a GPU the values of a step are read some steps later, when the step has finished, on a stream of their
    own. The host waits for the device only at the end of an epoch, after validation has been queued, so that
    the device always has work. Several processes read them at once, since they decide together whether to
    stop.

    Raises Diverged with `advice` if the loss was not finite at any step, and Diverged with the text that
    `trouble` returns, if any.
    """

    def __init__(
        self,
        every: int,
        *,
        per_step: Source,
        per_epoch: Source,
        trouble: Callable[[], str | None],
        advice: str,
    ):
        self.every, self.per_step, self.per_epoch = every, per_step, per_epoch
        self.trouble, self.advice = trouble, advice
        self._losses: Tensor | float = 0.0  # their sum, which is finite only if each is
        self._due: Due | None = None
        self._wanted = False  # since a batch of the present step
        self._step = 0  # the optimizer step of the batch before
        self._aside: AbstractContextManager = nullcontext()  # the stream that values are read on

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step = trainer.global_step
        if _reads_later(trainer):
            self._aside = torch.cuda.stream(torch.cuda.Stream())

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = loss_in(outputs)
        if loss is not None:
            self._losses = self._losses + loss.detach().float()
        before, self._step = self._step, trainer.global_step
        self._wanted |= (batch_idx + 1) % self.every == 0
        if (self._wanted and self._step != before) or trainer.is_last_batch:
            self._wanted = False
            self._report(trainer)
            self._due = self._copies(trainer, loss)
        if self._due is not None and self._due.ready():
            self._report(trainer)

    def _copies(self, trainer: pl.Trainer, loss: Tensor | None) -> Due:
        """The next step overwrites the loss and the learning rate."""
        rate, event = trainer.optimizers[0].param_groups[0].get("lr"), None
        rate = rate.clone() if isinstance(rate, Tensor) else rate
        if loss is not None:
            loss = trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean")  # over all processes
        if _reads_later(trainer):
            event = torch.cuda.Event()
            event.record()
        return Due(trainer.global_step, loss, rate, self._losses, event)

    def _report(self, trainer: pl.Trainer) -> None:
        """Waits until the device has computed the copied values."""
        due, self._due = self._due, None
        if due is None:
            return
        if due.event is not None:
            due.event.synchronize()
        with self._aside:
            self._stop_unless_finite(due.losses, trainer, due.step)
            values = {} if due.lr is None else {"train/lr": float(due.lr)}
            # a module of the user's own may log it
            if due.loss is not None and "train/loss" not in trainer.callback_metrics:
                values["train/loss"] = due.loss.item() * trainer.accumulate_grad_batches
            _log(trainer, values, due.step)
            _log(trainer, self.per_step(), due.step)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._report(trainer)
        self._stop_unless_finite(self._losses, trainer, trainer.global_step)
        _log(trainer, self.per_epoch(), trainer.global_step)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write out what a run that continues from this checkpoint will not log again.

        SummaryWriter would keep it in memory for two minutes, in which a kill would lose it.
        """
        self._report(trainer)
        if isinstance(trainer.logger, RunLogger):
            trainer.logger.flush()

    def _stop_unless_finite(self, losses: float | Tensor, trainer: pl.Trainer, step: int) -> None:
        lost = not math.isfinite(losses)
        if trainer.strategy.reduce_boolean_decision(lost, all=False):  # all ranks stop when one must
            lr = trainer.optimizers[0].defaults.get("lr", math.nan)
            raise Diverged(
                f"the loss became infinite or NaN by step {step} (epoch {trainer.current_epoch}, "
                f"optimizer.lr={lr:.3g}). {self.advice}"
            )
        if (trouble := self.trouble()) is not None:
            raise Diverged(trouble)


def _reads_later(trainer: pl.Trainer) -> bool:
    return trainer.strategy.root_device.type == "cuda" and trainer.world_size == 1


def _log(trainer: pl.Trainer, values: Mapping[str, float | None], step: int) -> None:
    if trainer.logger is not None:
        trainer.logger.log_metrics(
            {tag: value for tag, value in values.items() if value is not None}, step=step
        )
