"""Run the first training step under dispatch modes that record or count its operations."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.measure.batches import UNLIKE, sample_shapes, samples_in


class Entered(ExitStack):
    """Contexts that are entered for as long as a part of the Trainer needs them. A copy of that part has entered none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Entered":
        return Entered()


OTHER_STEPS = "the module takes more optimizer steps in some batches than in others, and only the first batch's operations were counted"


class FirstStep(Callback):
    """Enters `watchers` (FLOP counter, audit, …) around the first batch that this process trains, which is always a warm-up step.

    then: called after that batch. samples: a function from a batch to its number of samples, the same as the throughput's.
    """

    def __init__(
        self, *watchers: AbstractContextManager, then: Callable[[], None] = lambda: None, samples: Callable[[Any], int] = samples_in
    ):
        self.watchers, self.then, self.samples_of = watchers, then, samples
        self.samples = 0  # in the watched batch; 0 before it
        self.unlike: str | None = None  # why its operations are not representative of the other batches
        self._shapes: frozenset[tuple[int, ...]] = frozenset()  # of its samples
        self._steps: int | None = None  # optimizer steps of the first batch, in manual optimization
        self._stack: Entered | None = None

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if not pl_module.automatic_optimization:
            self._before = trainer.global_step
        if self.samples > 0:
            if self.unlike is None and sample_shapes(batch) != self._shapes:
                self.unlike = UNLIKE
        else:
            self._shapes = sample_shapes(batch)
            self.samples = self.samples_of(batch)
            self._stack = Entered()
            for watcher in self.watchers:
                self._stack.enter_context(watcher)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not pl_module.automatic_optimization:
            steps = trainer.global_step - self._before
            self._steps = steps if self._steps is None else self._steps
            if steps != self._steps:
                self.unlike = OTHER_STEPS
        if self._stack is not None:
            self._leave()
            self.then()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None
