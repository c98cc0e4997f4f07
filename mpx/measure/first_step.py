"""Run the first training step, and the first of each length of texts, under dispatch modes that record and
count its operations.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.measure.batches import UNCOUNTED, Shapes, samples_in, shapes_in
from mpx.measure.flops import FlopCounter
from mpx.precision.audit import Audit

MOST = 8  # shapes of samples whose operations are counted
UNLIKE = (
    f"batches differ in the size of their samples, and operations are counted for at most {MOST} sizes, "
    "which must be known before the step"
)
MANUAL = (
    "manual optimization may compute other operations in other batches, and only the first batch's "
    "were counted"
)


class FirstStep:
    """The formats of the first step's operations by `audit`, and the FLOPs of the first step of each shape of
    samples. The first step is always one of the warm-up.

    then: called with the audit after that step.
    """

    def __init__(self, audit: Audit, then: Callable[[Audit], None] = lambda audit: None):
        self.audit, self.then = audit, then
        self.samples = 0  # in the step; 0 before its end, and where their number is unknown
        self.unlike: str | None = None  # why its operations do not stand for those of the other steps
        self._over = False
        self._counter: FlopCounter | None = None  # of a step that is counted
        self._flops: dict[Shapes | None, float] = {}  # per sample
        self._trained: Counter[Shapes | None] = Counter()  # samples
        self._entered = ExitStack()

    @property
    def flops_per_sample(self) -> float | None:
        """The mean over all samples."""
        if self.unlike is not None or not self._trained.total():
            return None
        flops = sum(self._flops[shapes] * samples for shapes, samples in self._trained.items())
        return flops / self._trained.total()

    def begin(self, shapes: Shapes | None = None) -> None:
        """A step begins. shapes: of its samples, where they are known."""
        another = shapes is not None and shapes not in self._flops and len(self._flops) < MOST
        if not self._over or another:
            self._counter = self._entered.enter_context(FlopCounter())
        if not self._over:
            self._entered.enter_context(self.audit)

    def end(self, samples: int | None, shapes: Shapes | None) -> None:
        """A step has ended. shapes: of its samples; None: they differ from one another."""
        self.abandon()
        if self._counter is not None and samples:
            self._flops[shapes] = self._counter.total / samples
        self._trained[shapes] += samples or 0
        first, self._over, self._counter = not self._over, True, None
        if first:
            self.samples = samples or 0
            self.then(self.audit)
        if self.unlike is None and samples is None:
            self.unlike = UNCOUNTED
        if self.unlike is None and (shapes is None or shapes not in self._flops):
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
        self.first.begin(shapes_in(batch, self.samples_of(batch)))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        samples = self.samples_of(batch)
        self.first.end(samples, shapes_in(batch, samples))

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self.first.abandon()
