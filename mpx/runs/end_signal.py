"""Has a signal told any process of the run to end?"""

import time

import pytorch_lightning as pl
import torch

from mpx.runs import signals

EVERY = 1.0  # seconds between two questions, about


class EndSignal:
    """All processes of a run have to save at the same step, so they ask one another whether a signal came. An answer waits for the device:
    a question after each step would keep steps from being queued. So they also agree on the step after which they ask again."""

    def __init__(self) -> None:
        self._pace = float("inf")  # seconds for a step, between the newest two answers
        self._step = 0
        self._answered: float | None = None  # when the newest answer came
        self._next = 0  # the step after which to ask

    def came(self, trainer: pl.Trainer, *, now: bool = False) -> bool:
        """Call it after the same steps in all processes. now: ask at once."""
        if trainer.world_size == 1:
            return signals.asked()
        if not now and trainer.global_step < self._next:
            return False
        mine = torch.tensor([float(signals.asked()), self._pace], device=trainer.strategy.root_device)
        asked, pace = trainer.strategy.reduce(mine, reduce_op="max").tolist()
        before, self._step = self._step, trainer.global_step
        earlier, self._answered = self._answered, time.monotonic()
        if earlier is not None:  # nothing is known from before the first answer: a run that continues has steps of an earlier process
            self._pace = (self._answered - earlier) / max(1, self._step - before)
        self._next = self._step + max(1, int(EVERY / pace))
        return bool(asked)
