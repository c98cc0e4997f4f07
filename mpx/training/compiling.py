"""Time the first steps of a run, then compile the others if that pays."""

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
from mpx.acceleration.payoff import Notebook, pays
from mpx.measure.profile_plan import batches_left
from mpx.measure.windows import Clock

TIMED = 10  # batches, after those in which kernels are chosen and the step is recorded


class CompileIfItPays(Callback):
    """For a run whose choice leaves compiling open. All processes decide at the same batch: if it does not pay for one, none compiles.

    choice: as it stands now. notebook: keeps what was measured, so that later runs of the same step decide alike. shared: whether other
    work slows the steps down, which are then not kept. after: called when the steps are compiled from now on, or no longer.
    """

    def __init__(
        self,
        choice: Choice,
        acceleration: Acceleration,
        notebook: Notebook | None,
        shared: Callable[[], bool],
        after: Sequence[Callable[[pl.Trainer], None]],
    ):
        self.choice, self.acceleration, self.notebook, self.shared, self.after = choice, acceleration, notebook, shared, after
        self._figures = choice.undecided
        self._marks: list[tuple[Any, Any, int]] | None = []  # begin, end and number of each batch; None: nothing is left to decide

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.clock = Clock(trainer.strategy.root_device)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._marks is not None:
            self._began = self.clock.mark()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._marks is None:
            return
        self._marks.append((self._began, self.clock.mark(), batch_idx))
        if len(self._marks) < self.acceleration.settled + TIMED:
            return
        step_ms, gap_ms = self._typical()
        if self.choice.undecided is not None:
            self._figures = replace(self._figures, step_ms=step_ms, gap_ms=gap_ms)
            self._decide(trainer, batches_left(trainer, batch_idx + 1))
        else:
            self._look_back(trainer, step_ms, gap_ms)

    def _typical(self) -> tuple[float, float]:
        """Milliseconds of a step, and from a step to the next one.

        Gaps count by their mean, because workers deliver several batches at a time. The longest is left out, since a single pause says
        nothing, and so are the gaps between epochs.
        """
        self.clock.synchronize()
        timed = self._marks[-TIMED:]
        steps = [self.clock.between(begin, end) for begin, end, _ in timed]
        gaps = sorted(self.clock.between(end, begin) for (_, end, _), (begin, _, number) in pairwise(timed) if number > 0)[:-1]
        return median(steps), sum(gaps) / len(gaps) if gaps else 0.0

    def _decide(self, trainer: pl.Trainer, left: int) -> None:
        worth, why = pays(self._figures, left)
        against = agreed(None if worth else why)
        if against is not None:
            self._done(trainer)
            self.choice = replace(self.choice, undecided=None, why=self.choice.why | {"compile": against})
            say(f"speed: not compiled ({against})")
            return
        self._marks = []
        self.choice = replace(self.choice, undecided=None, compile="default", why=self.choice.why | {"compile": why})
        say(f"speed: compiled from step {trainer.global_step} on ({why})")
        self.acceleration.compile(trainer.global_step)
        self._tell(trainer)

    def _look_back(self, trainer: pl.Trainer, compiled_ms: float, gap_ms: float) -> None:
        """A compiled step that turns out to be slower is given up.

        Compiling and recording took the time of the batches that are left out. What lies between batches, such as a validation, is no
        part of it.
        """
        compile_s = sum(self.clock.between(begin, end) for begin, end, _ in self._marks[:-TIMED]) / 1e3
        self._done(trainer, compiled_ms + gap_ms, compile_s)
        slower = compiled_ms > self._figures.step_ms
        words = f"a compiled step takes {compiled_ms:.3g} ms, another {self._figures.step_ms:.3g}"
        if (reason := agreed(words if slower else None)) is not None and self.acceleration.compiled.given_up is None:
            self.acceleration.give_up_compiling(reason)
            self._tell(trainer)

    def _tell(self, trainer: pl.Trainer) -> None:
        for part in self.after:
            part(trainer)

    def _done(self, trainer: pl.Trainer, compiled_ms: float | None = None, compile_s: float | None = None) -> None:
        """compiled_ms: of a compiled step and the gap behind it."""
        self._marks = None
        given_up = self.acceleration.compiled.given_up is not None
        if self.notebook is not None and trainer.local_rank == 0 and not given_up and not self.shared():
            self.notebook.write(self._figures, compiled_ms, compile_s)
