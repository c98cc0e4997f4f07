"""Run the first training step under dispatch modes that record and count its operations."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.measure.batches import UNCOUNTED, Shapes, samples_in, shapes_in
from mpx.measure.flops import FlopCounter
from mpx.precision.audit import Audit
from mpx.private.lightning import Entered

UNLIKE = (
    "samples differ in size between batches, such as texts of several lengths, and only the first "
    "batch's operations were counted"
)
MANUAL = (
    "manual optimization may compute other operations in other batches, and only the first batch's "
    "were counted"
)


class FirstStep:
    """The FLOPs of the first step, and by `audit` the formats of its operations. The step is always one of
    the warm-up.

    then: called with the audit after that step.
    """

    def __init__(self, audit: Audit, then: Callable[[Audit], None] = lambda audit: None):
        self.audit, self.flops, self.then = audit, FlopCounter(), then
        self.samples = 0  # in the step; 0 before its end, and where their number is unknown
        self.unlike: str | None = None  # why its operations do not stand for those of the other steps
        self._over = False
        self._shapes: Shapes | None = None  # of its samples
        self._entered = Entered()

    @property
    def flops_per_sample(self) -> float | None:
        return self.flops.total / self.samples if self.samples and self.unlike is None else None

    def begin(self) -> None:
        """A step begins."""
        if not self._over:
            self._entered.enter_context(self.flops)
            self._entered.enter_context(self.audit)

    def end(self, samples: int | None, shapes: Shapes | None) -> None:
        """A step has ended. shapes: of its samples; None: they differ from one another."""
        self.abandon()
        first, self._over = not self._over, True
        if first:
            self.samples, self._shapes = samples or 0, shapes
            self.then(self.audit)
        if self.unlike is None and samples is None:
            self.unlike = UNCOUNTED
        if self.unlike is None and (shapes is None or shapes != self._shapes):
            self.unlike = UNLIKE

    def abandon(self) -> None:
        """The step raised an error."""
        self._entered.close()


class WatchFirstStep(Callback):
    """Has `first` watch a Trainer's first batch. samples: a function from a batch to its number of samples,
    that of the throughput.
    """

    def __init__(self, first: FirstStep, samples: Callable[[Any], int | None] = samples_in):
        self.first, self.samples_of = first, samples

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if not pl_module.automatic_optimization:
            self.first.unlike = MANUAL
        self.first.begin()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        samples = self.samples_of(batch)
        self.first.end(samples, shapes_in(batch, samples))

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self.first.abandon()
