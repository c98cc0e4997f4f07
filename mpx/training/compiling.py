"""Time the first steps of a run, then compile the others if they take long enough."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.acceleration.apply import Acceleration, Choice, say
from mpx.acceleration.graph import agreed
from mpx.measure.windows import Clock

TIMED = 10  # batches, after those in which kernels are chosen and the step is recorded
# Seconds of uncompiled steps. Compiling takes 8 to 43 s and saves 11 to 30 % of a step (experiments/speed,
# auto).
PAYS_FROM_S = 90.0


class CompileIfItPays(Callback):
    """For a run whose choice leaves compiling open. All processes decide at the same batch: if it does not
    pay for one, none compiles.

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
