"""Time the first steps of a run, then compile the others if they take long enough."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.acceleration.apply import Acceleration, say
from mpx.acceleration.choice import Choice
from mpx.acceleration.graph import agreed
from mpx.measure.windows import Clock

TIMED = 10  # batches, after those in which kernels are chosen and the step is recorded
# Seconds of uncompiled steps. Compiling takes 8 to 43 s and saves 11 to 30 % of a step (experiments/speed,
# auto).
PAYS_FROM_S = 90.0


class CompileIfItPays(Callback):
    """For a run whose choice leaves compiling open. All processes decide at the same batch: if it does not
    pay for one, none compiles.

    choice: as it stands now. after: called when the steps are compiled from now on.
    """

    def __init__(
        self,
        choice: Choice,
        acceleration: Acceleration,
        clock: Clock,
        after: Sequence[Callable[[pl.Trainer], None]],
    ):
        self.choice, self.acceleration, self.clock, self.after = choice, acceleration, clock, after
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
            self._decide(trainer, batches_left(trainer, batch_idx + 1), batch_ms)

    def _decide(self, trainer: pl.Trainer, left: float, batch_ms: float) -> None:
        """batch_ms: with the wait for the batch."""
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


def batches_left(trainer: pl.Trainer, done: int) -> float:
    """The batches of the whole training that follow `done` batches of this epoch and their optimizer
    steps.
    """
    batches, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    left = batches - done
    limit = math.inf if trainer.max_epochs is None else trainer.max_epochs
    by_epochs = left + (limit - trainer.current_epoch - 1) * batches
    if trainer.max_steps == -1:
        return by_epochs
    steps, steps_of_epoch = trainer.max_steps - trainer.global_step, math.ceil(batches / accumulated)
    steps_here = steps_of_epoch - done // accumulated if left else 0
    if steps < steps_here:
        return steps * accumulated - done % accumulated
    epochs, rest = divmod(steps - steps_here, steps_of_epoch)
    return min(by_epochs, left + epochs * batches + rest * accumulated)
