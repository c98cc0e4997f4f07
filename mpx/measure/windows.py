"""Measure the throughput of any training loop: samples in timed windows ÷ their time.

On a CUDA device a window goes from one event to another on the device's time line. That gives the same times
as synchronising at its ends, but the host does not wait, so validation is queued while the last steps still
run.
"""

import time
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mpx.measure.batches import UNCOUNTED
from mpx.measure.exclusive import CpuUse

PARTS = ("warmup", "steps", "validation", "other", "end")  # of the time to train


class Clock:
    """Marks on the device's time line. `mark` does not synchronise; `between` needs a `synchronize` before
    it.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between(self, first: Any, second: Any) -> float:
        """The milliseconds from one mark to the other."""
        return first.elapsed_time(second) if self.device.type == "cuda" else (second - first) * 1e3


class Windows:
    """Times training steps in windows. The windows leave out the first `warmup_steps` steps, also after
    `warm_up_again`, and everything between `close_window` and `open_window`.

    parts: the seconds of the time to train, by purpose, of this process only:
    - `warmup`: from the start to the end of the warm-up steps
    - `steps`: the windows
    - `validation`
    - `end`: until the last checkpoint is on the disk and the device is cleared
    - `other`: between epochs (reports, checkpoints, the next epoch's order), pruning and profiling
    """

    def __init__(self, warmup_steps: int):
        self.warmup_steps = warmup_steps
        self.earlier_s = 0.0  # time to train of the processes before a resume
        self._forget()

    def _forget(self) -> None:
        self.samples = self.measured_steps = 0
        self.waited_ms = 0.0
        self.step_ms = array("d")  # 8 bytes a step, also after millions of steps
        self.parts = dict.fromkeys(PARTS, 0.0)
        self._left = self.warmup_steps  # warm-up steps that remain
        self._began: float | None = None
        self._ended: float | None = None
        self._marks: list[Any] | None = None  # of the open window: its start and each step's end
        self._closed: list[tuple[int, list[Any]]] = []  # samples and marks of windows, not read yet
        self._waits: list[tuple[Any, Any]] = []  # for batches in those windows
        self._entered: list[tuple[str, Any]] = []  # parts and the marks of their starts, not read yet
        # the mark of the newest step's end, or of the present part's start, if that is later
        self._last: Any = None
        self._in_window = 0  # samples in the open window
        self._uncounted = False  # how many samples some batch has is unknown
        self._paused = False  # a profile has the steps
        self._cpu: CpuUse | None = None  # since the first window's start
        self._cpu_share: float | None = None  # that other programs used, once it is known

    def begin(self, device: torch.device, waits: Callable[[], list[tuple[Any, Any]]] = list) -> None:
        """Begin the time to train. Forgets the measurements of an earlier training, except `earlier_s`.

        waits: returns (mark of the request, mark of the arrival) of each batch since its last call. Without
        it, the loop calls `waited`.
        """
        self._forget()
        self.clock, self.take_waits = Clock(device), waits
        self._began = time.perf_counter()
        self.enter("warmup")

    def stepped(self, samples: int | None) -> None:
        """A training step on `samples` samples (None: unknown) has ended. The step that ends the warm-up
        opens a window; so does a later one outside.
        """
        self._last = self.clock.mark()
        self._uncounted |= samples is None
        if self._marks is not None:
            self._in_window += samples or 0
            self._marks.append(self._last)
            return
        self._left = max(0, self._left - 1)
        self.open_window()

    def waited(self) -> None:
        """The time since the last step of the open window was spent waiting for data."""
        if self._marks is not None:
            self._waits.append((self._marks[-1], self.clock.mark()))

    @property
    def warm(self) -> bool:
        """Whether the warm-up is over."""
        return self._left == 0

    @property
    def timing(self) -> bool:
        """Whether a window is open."""
        return self._marks is not None

    def warm_up_again(self) -> None:
        """Leave out the next `warmup_steps` steps. The time since the last step, such as that of a pruning,
        counts as `other`.
        """
        self._end_steps("other")
        self.close_window("warmup")
        self._left = self.warmup_steps
        self.open_window()

    def start_over(self) -> None:
        """Forget the measurements, since the next steps will differ, and warm up again."""
        self._cpu = None
        self.warm_up_again()
        self.read()
        self.samples, self.measured_steps, self.waited_ms, self.step_ms = 0, 0, 0.0, array("d")

    def interrupt(self) -> None:
        """Drop the windows that are not read yet: an interrupted window measures nothing."""
        self._marks, self._closed, self._waits, self._entered = None, [], [], []
        self._ended = self._ended or time.perf_counter()
        self.cpu_used_by_others()

    def enter(self, part: str, mark: Any = None) -> None:
        """From now on, or from `mark`, time counts as `part` of the time to train."""
        if self._began is not None and self._ended is None:
            self._last = self.clock.mark() if mark is None else mark
            self._entered.append((part, self._last))

    def open_window(self) -> None:
        """Open a window here, once the steps are warm."""
        if not self.warm or self._paused:
            return
        self._cpu = self._cpu or CpuUse()
        self.enter("steps")
        self.take_waits()
        self._in_window, self._marks = 0, [self._entered[-1][1]]

    def close_window(self, then: str = "other", mark: Any = None) -> None:
        """End the window, if one is open. then: the part of the time to train that begins at the window's
        last step, or else now or at `mark`.
        """
        if self._marks is not None:
            self._waits += self.take_waits()
            self._closed.append((self._in_window, self._marks))
            mark, self._marks = self._marks[-1], None
        self.enter(then, mark)

    def leave(self, then: str) -> None:
        """Count the time since the end of the last step as `then`, not as a step. This waits for the
        device.
        """
        if self._end_steps(then):
            self.read()

    def _end_steps(self, then: str) -> bool:
        """Let `then` begin at the end of the last step, or where its part began, if steps or their warm-up go
        on.
        """
        if steps := bool(self._entered) and self._entered[-1][0] in ("warmup", "steps"):
            self.close_window(then, self._last)
        return steps

    def read(self) -> None:
        """Read the times from the marks. This waits for the device."""
        if not self._closed and len(self._entered) < 2:
            return
        self.clock.synchronize()
        for samples, marks in self._closed:
            self.samples += samples
            self.measured_steps += len(marks) - 1
            self.step_ms.extend(self.clock.between(a, b) for a, b in pairwise(marks))
        self.waited_ms += sum(self.clock.between(*wait) for wait in self._waits)
        for (part, begun), (_, ended) in pairwise(self._entered):
            self.parts[part] += self.clock.between(begun, ended) / 1e3
        self._closed, self._waits, self._entered = [], [], self._entered[-1:]

    @property
    def seconds(self) -> float:
        """The time of all closed windows, each to the end of its last step."""
        self.read()
        return sum(self.step_ms) / 1e3

    @property
    def time_to_train_s(self) -> float:
        """The wall time of fitting so far, with evaluation and checkpoints, summed over the processes of a
        resumed run.
        """
        if self._began is None:
            return self.earlier_s
        return self.earlier_s + (self._ended or time.perf_counter()) - self._began

    def finish(self) -> None:
        """End the time to train now."""
        self.enter("end")
        self.read()
        self._ended = time.perf_counter()
        self.cpu_used_by_others()

    def finish_with_last_step(self) -> None:
        """End the time to train at the end of the newest step."""
        self.leave("end")
        if self._began is not None:
            self._ended = self._began + sum(self.parts.values())
        self.cpu_used_by_others()

    def cpu_used_by_others(self) -> float | None:
        """The share of the cores' time that other programs used, from the first window to the end or to the
        first call before it.
        """
        if self._cpu is not None and self._cpu_share is None:
            self._cpu_share = self._cpu.by_others()
        return self._cpu_share

    @property
    def samples_per_s(self) -> float | None:
        seconds = self.seconds  # reads the samples, too
        return self.samples / seconds if self.samples and not self._uncounted else None

    def record(self, flops_per_sample: float | None) -> dict[str, Any]:
        """The speed part of result.json. flops_per_sample: of the forward and backward pass."""
        rate = self.samples_per_s
        median, late = np.percentile(self.step_ms, (50, 95)).tolist() if self.step_ms else (None, None)
        record = {
            "train_samples_per_s": rate,
            "step_ms_p50": median,
            "step_ms_p95": late,
            "measured_steps": self.measured_steps,
            "warmup_steps": self.warmup_steps,
            "data_wait_fraction": self.waited_ms / 1e3 / self.seconds if self.seconds else None,
            "model_tflops_per_s": rate * flops_per_sample / 1e12 if rate and flops_per_sample else None,
            "time_to_train_s": self.time_to_train_s,
            "time_to_train_parts_s": dict(self.parts),
        }
        if rate is None:
            record["train_samples_per_s_reason"] = self.unmeasured()
        return record

    def unmeasured(self) -> str:
        """Why there is no throughput."""
        if self._uncounted:
            return UNCOUNTED
        since = "since it was resumed, " if self.earlier_s else ""
        return (
            f"{since}the run had no two steps in a row to time after its {self.warmup_steps} warm-up steps "
            "(trainer.warmup_steps)"
        )
