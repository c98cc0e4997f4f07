"""The optimizer steps of a loop: how many, of how many samples, in what time, and the operations of the first."""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from fractions import Fraction

import torch

from mpx.measure.flops import FlopCounter, model_flops
from mpx.measure.memory import reset_host_peak, reset_peak
from mpx.measure.windows import Windows
from mpx.precision.audit import Audit
from mpx.precision.modes import Mode
from mpx.precision.switches import multiplied_now

Shapes = frozenset[tuple[int, ...]]  # of mpx.measure.batches.sample_shapes


class Steps:
    """warmup_steps: first steps that the throughput leaves out. observe: record the formats and FLOPs of the first step.

    The FLOPs of `flops` are also of products that no precision mode concerns; `audit` has the others.
    """

    def __init__(self, warmup_steps: int, *, observe: bool):
        self.windows = Windows(warmup_steps)
        self.number = 0  # also of those before the checkpoint from which the loop goes on
        self.samples: Counter[int] = Counter()  # samples of a step -> number of such steps
        self.observed = 0  # samples of the observed step
        self.alike = True  # all steps have samples of these shapes, as often for each sample
        self.inside = False  # a step
        self._shapes: Mapping[Shapes, Fraction] | None = None  # of its samples, as `end` has them
        self._broken = False  # the newest step raised an error
        self._observe, self._look = observe, ExitStack()

    def start(self, device: torch.device, *, observe: bool = True) -> None:
        """The loop begins. device: on which the steps are timed. observe=False: no step is observed in this process."""
        self.device, self._observe = device, self._observe and observe
        self._observe_anew()
        reset_host_peak()
        reset_peak(device)
        self.windows.begin(device)

    def _observe_anew(self) -> None:
        """FP32 operands multiply as PyTorch's switches now say."""
        self.audit = Audit(Mode("observed", **multiplied_now(self.device)), emulate=False, flops_of=model_flops)
        self.flops = FlopCounter()

    def begin(self) -> None:
        """A step."""
        if self.windows.timing:
            self.windows.waited()
        else:
            self.windows.enter("warmup")  # until a window opens, which it does only for warm steps
            self.windows.open_window()
        self.inside = True
        if self._observe and not self.observed:
            self._look.enter_context(self.flops)
            self._look.enter_context(self.audit)

    def end(self, samples: int, shapes: Mapping[Shapes, Fraction] | None) -> bool:
        """As `mpx.Recorder.end_step`. Returns whether the step was observed."""
        self._look.close()
        self.inside = False
        self.number += 1
        self.samples[samples] += 1
        self._shapes = shapes if self._shapes is None else self._shapes
        self.alike = self.alike and shapes == self._shapes
        if observed := self._observe and not self.observed:
            self.observed = samples
            reset_peak(self.device)  # an uncompiled step may need more memory
        self.windows.stepped(samples)
        return observed

    def broke(self) -> None:
        """The step raised an error."""
        self._look.close()
        self.inside, self._broken = False, True

    @property
    def unfinished(self) -> bool:
        """The newest step did not end, as when a batch did not fit and the loop goes on."""
        return self.inside or self._broken

    def drop(self) -> None:
        """The unfinished step: neither its time nor its operations count."""
        self._look.close()
        self.inside = self._broken = False
        if not self.observed:
            self._observe_anew()

    def start_over(self) -> None:
        """The steps so far only count for the time to train."""
        self.windows.start_over()
        self.samples.clear()
