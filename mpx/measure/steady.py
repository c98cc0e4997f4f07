"""Time undisturbed steps, and how long each waits for its batch."""

import time
from statistics import median

import pytorch_lightning as pl

from mpx.measure.throughput import take_waits
from mpx.measure.windows import Clock


class SteadySteps:
    """Times the training steps between `begin` and `end`.

    On a CPU each step is timed by itself, because that needs no synchronisation. On a GPU the steps between `begin` and `end` are timed
    together.
    """

    def __init__(self, clock: Clock, trainer: pl.Trainer):
        self.clock, self.trainer = clock, trainer
        self.each_alone = clock.device.type != "cuda"
        self.steps = 0
        self._spans: list[tuple[float, float]] = []  # (seconds, seconds of them in which the host waited for a batch)
        self._began: float | None = None

    def begin(self) -> None:
        self.clock.synchronize()
        take_waits(self.trainer)
        self._began = time.perf_counter()

    def step(self) -> None:
        """Call it after each step."""
        self.steps += 1
        if self.each_alone:
            self._close()
            self.begin()

    def end(self) -> None:
        if self.each_alone:
            self._began = None
        else:
            self._close()

    def _close(self) -> None:
        if self._began is not None:
            self.clock.synchronize()
            seconds = time.perf_counter() - self._began
            self._spans.append((seconds, sum(self.clock.between(*wait) for wait in take_waits(self.trainer)) / 1e3))
            self._began = None

    def typical(self, loader: str) -> tuple[float, float]:
        """Returns (milliseconds of a step, milliseconds of them in which it waits for its batch). loader: resident or workers.

        On a CPU these are medians, because other programs can delay a single step. Waiting for workers is a mean, because workers deliver
        several batches at a time.
        """
        if not self.each_alone:
            seconds, waited = (sum(part) / self.steps for part in zip(*self._spans, strict=True))
            return seconds * 1e3, waited * 1e3
        waits = [waited for _, waited in self._spans]
        waited = median(waits) if loader == "resident" else sum(waits) / len(waits)
        return (median(seconds - waited for seconds, waited in self._spans) + waited) * 1e3, waited * 1e3
