"""Trace some steps with torch.profiler, and keep the trace as a file."""

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from mpx.acceleration.apply import Acceleration
from mpx.measure.windows import Clock


def quiet_profiler(device: torch.device) -> None:
    """Set the variables that the profiler's library reads when it is first used."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise it reports its own stages on stderr
    if device.type == "cuda":  # setting CUPTI up twice beside a CUDA graph can crash (torch/profiler/profiler.py)
        os.environ |= {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}


class TracedSteps:
    """Traces `count` steps, after a first step that is not kept because the profiler loads in it."""

    def __init__(self, clock: Clock, acceleration: Acceleration, count: int, file: Path):
        self.clock, self.acceleration, self.count, self.file = clock, acceleration, count, file
        self.replayed = self.compiled = 0  # of the kept steps
        self._steps = 0
        self._profiler: Any = None

    def start(self) -> None:
        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.clock.device.type == "cuda" else [])
        self._profiler = profile(
            activities=kinds,
            schedule=schedule(wait=0, warmup=1, active=self.count, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(self.file)),
            acc_events=True,
        )
        self._profiler.start()

    def step(self) -> bool:
        """Call it after each step. Returns whether the trace is complete."""
        self._steps += 1
        first, last = self._steps == 1, self._steps == self.count + 1
        if first or last:  # so that the device's work for a step lies within it
            self.clock.synchronize()
        if first:
            self._before = self.acceleration.counts()
        if last:
            counts = zip(self.acceleration.counts(), self._before, strict=True)
            self.replayed, self.compiled = (after - before for after, before in counts)
        self._profiler.step()
        if last:
            self.stop()
        return last

    def stop(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
