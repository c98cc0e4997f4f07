"""The callbacks of a run in the order in which they run; and here those that begin it, compile it if that
pays, show its progress, and end it.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch.distributed as dist
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback, EarlyStopping
from torch import Tensor

from mpx.acceleration.apply import Acceleration, Choice, say
from mpx.acceleration.graph import agreed
from mpx.data.tasks import loss_in
from mpx.errors import UserError
from mpx.measure.throughput import Throughput
from mpx.measure.windows import Clock
from mpx.precision.plugin import ModePrecision
from mpx.private.lightning import BarFromOne
from mpx.runs.checkpoint import reached_max_steps
from mpx.runs.history import History, RandomState
from mpx.runs.result import not_logged
from mpx.settings.check import falls
from mpx.sparsity.callback import Pruning
from mpx.system.printing import number, rate
from mpx.training.ema import Ema
from mpx.training.logging import Scalars
from mpx.training.measuring import Measuring
from mpx.training.module import TrainingModule

TIMED = 10  # batches, after those in which kernels are chosen and the step is recorded
# Seconds of uncompiled steps. Compiling takes 8 to 43 s and saves 11 to 30 % of a step (experiments/speed,
# auto).
PAYS_FROM_S = 90.0
SILENT_S = 30.0  # without a bar, the longest time between two lines
SHOWN = ("accuracy", "perplexity", "mse", "map", "f1")  # metrics of a validation


class Beginning(Callback):
    """Calls `begin` once, immediately before the first batch. By then everything that a user can get wrong
    has been checked, also the checkpoint.
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


class SameBuffers(Callback):
    """Gives all processes rank 0's buffers before they evaluate, since each has running means of its own
    batches.
    """

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for buffer in pl_module.buffers() if trainer.world_size > 1 else ():
            dist.broadcast(buffer, src=0)

    on_test_start = on_validation_start


class CompileIfItPays(Callback):
    """For a run whose choice leaves compiling open. If it does not pay for one process, none compiles.

    choice: as it stands now. steps: optimizer steps of the whole run. after: called when the steps are
    compiled from now on.
    """

    def __init__(
        self,
        choice: Choice,
        acceleration: Acceleration,
        clock: Clock,
        steps: int,
        after: Sequence[Callable[[pl.Trainer], None]],
    ):
        self.choice, self.acceleration, self.clock = choice, acceleration, clock
        self.steps, self.after = steps, after
        self._ends: list[Any] = []  # marks at the batches' ends

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self.choice.undecided:
            return
        self._ends.append(self.clock.mark())
        if len(self._ends) >= self.acceleration.steady_after + TIMED:
            self.clock.synchronize()
            batch_ms = median(self.clock.between(a, b) for a, b in pairwise(self._ends[-TIMED:]))
            self._decide(trainer, batch_ms)

    def _decide(self, trainer: pl.Trainer, batch_ms: float) -> None:
        """batch_ms: with the wait for the batch."""
        left = (self.steps - trainer.global_step) * trainer.accumulate_grad_batches
        left_s = left * batch_ms / 1e3
        words = f"{left:,} batches of {batch_ms:.3g} ms take {left_s:.3g} s, pays from {PAYS_FROM_S:g} s"
        against = agreed(None if left_s >= PAYS_FROM_S else words)
        compiling = "off" if against is not None else "default"
        why = self.choice.why | {"compile": against or words}
        self.choice = replace(self.choice, undecided=False, compile=compiling, why=why)
        if against is not None:
            say(f"speed: not compiled ({against})")
            return
        say(f"speed: compiled from step {trainer.global_step} on ({words})")
        self.acceleration.compile(trainer.global_step)
        for part in self.after:
            part(trainer)


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
            raise not_logged(self.monitor, trainer, "trainer.early_stopping")
        pruning = self.pruning
        if pruning is None or pruning.masks.complete or pruning.recipe.after_training:
            super().on_validation_end(trainer, pl_module)


class EpochLines(Callback):
    """Prints `epoch 3/20  loss 0.412  val accuracy 0.957  1,234 samples/s` after each epoch. within: also
    `epoch 3/20  batch 120/1,563  loss 0.412` after each SILENT_S seconds of an epoch. The loss is that of the
    first process: in a job of Slurm, the others may have no such callback, and a mean would never end.
    """

    def __init__(self, throughput: Throughput, metric: str | None, *, within: bool):
        self.throughput, self.metric, self.within = throughput, metric, within
        self._printed = time.monotonic()
        self._loss: Tensor | None = None
        self._validated = False  # in this epoch

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loss = loss_in(outputs)
        if self.within and trainer.is_global_zero and time.monotonic() - self._printed >= SILENT_S:
            self._print(trainer, [f"batch {batch_idx + 1:,}/{trainer.num_training_batches:,}"], [])

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        values = trainer.callback_metrics if self._validated else {}  # of an earlier epoch
        self._validated = False
        parts = [
            f"val {name} {values[f'val/{name}'].item():.4f}"
            for name in SHOWN
            if f"val/{name}" in values.keys() - {self.metric}
        ]
        parts += (
            [f"{self.metric} {number(values[self.metric].item(), '#.4g')}"] if self.metric in values else []
        )
        if (speed := self.throughput.samples_per_s) is not None:
            parts.append(f"{rate(speed)} samples/s")
        self._print(trainer, [], parts)

    def _print(self, trainer: pl.Trainer, before: list[str], after: list[str]) -> None:
        """before, after: the loss."""
        self._printed = time.monotonic()
        parts = [f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", *before]
        if self._loss is not None:
            parts.append(f"loss {self._loss.item() * trainer.accumulate_grad_batches:.4f}")
        print("  ".join(parts + after), flush=True)


def progress(requested: str, throughput: Throughput, metric: str | None = None) -> list[Callback]:
    """requested: auto, bar, lines or off. metric: a project's own, which is shown after each epoch."""
    if requested == "auto":
        requested = "bar" if sys.stdout.isatty() else "lines"
    if requested == "off":
        return []
    bar = [BarFromOne()] if requested == "bar" else []
    return [EpochLines(throughput, metric, within=not bar), *bar]


def early_stopping(cfg: DictConfig, pruning: Pruning | None) -> list[Callback]:
    name = cfg.trainer.early_stopping
    if name is None:
        return []
    goal = cfg.metric_goal if name == cfg.get("metric") else "min" if falls(name) else "max"
    return [EndsEarly(name, goal, cfg.trainer.early_stopping_patience, pruning)]


def callbacks(
    cfg: DictConfig, measuring: Measuring, precision: ModePrecision, history: History, beginning: Beginning,
    *,
    pruning: Pruning | None, ema: Ema | None, compiling: Callback | None, ends: Sequence[Callback],
    advice: str, project: bool = False,
) -> list[Callback]:  # fmt: skip
    """compiling: decides after the first steps whether to compile the rest. ends: run after all others: the
    last validation, checkpoints. advice: what to try when the run has diverged. project: Lightning says how
    it continues.
    """
    settings = cfg.trainer
    scalars = Scalars(
        settings.log_every_n_steps, per_step=precision.scalars, per_epoch=measuring.of_an_epoch,
        trouble=precision.trouble,
        advice=advice,
    )  # fmt: skip
    ordered = [
        pruning,
        ema,
        SameBuffers(),  # the averages, too, are of this process's batches
        None if project else RandomState(),
        history,
        measuring.watch,  # the first step is watched before numerics and throughput see its batch
        measuring.numerics,
        measuring.throughput,
        measuring.profile,  # pauses the throughput after it has counted the step
        scalars,  # what the others have measured
        *progress(settings.progress, measuring.throughput, cfg.get("metric")),
        beginning,  # after all others have restored their state
        compiling,  # after the throughput has counted the last uncompiled step
        *early_stopping(cfg, pruning),
        *ends,
    ]
    return [callback for callback in ordered if callback is not None]
