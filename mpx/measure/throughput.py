"""How fast training goes: samples in the timed window ÷ its time, and what the rest of the time to train went into.

On a CUDA device a window goes from one event to another, on the device's own time line: its ends are where synchronising there would
put them, but nobody has to wait, so that validation is queued while the last steps still run.
"""

import statistics
import time
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

PARTS = ("warmup", "steps", "validation", "other", "end")  # what the time to train goes into


class Clock:
    """Marks on the device's own time line. `mark` costs no synchronisation; `between` may be called after `synchronize`."""

    def __init__(self, device: torch.device):
        self.device = device

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, second: Any) -> float:
        """Milliseconds from one mark to the next."""
        return first.elapsed_time(second) if self.device.type == "cuda" else (second - first) * 1e3


def take_waits(trainer: pl.Trainer) -> list[tuple[Any, Any]]:
    """Marks of when each batch was asked for and when it was there, since the last call; none where the loader takes no notes."""
    return getattr(trainer.train_dataloader, "take_waits", list)()


class Throughput(Callback):
    """Times training steps. Outside the window: the first `warmup_steps` steps (also after a resume and after `restart_warmup`, when
    compilation, autotuning or pruning may happen), evaluation, and whatever runs between epochs.

    parts: the time to train, in seconds, by what it was for: `warmup` (from the start of fitting to the end of the warm-up steps: data
    brought to the device, kernels loaded, steps looked into and recorded), `steps` (the windows), `validation`, `end` (until the last
    checkpoint is on the disk and the device cleared), and `other` (between epochs: reports, checkpoints, the next epoch's order; pruning,
    profiling). Of this process only, not of those before a resume.
    """

    def __init__(self, warmup_steps: int):
        self.warmup_steps = warmup_steps
        self.samples = self.measured_steps = 0
        self.waited_ms = 0.0
        self.step_ms: list[float] = []
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.earlier_s = 0.0  # time to train of the parts before a resume
        self._left = warmup_steps  # warm-up steps still to come
        self._began: float | None = None
        self._ended: float | None = None
        self._marks: list[Any] | None = None  # open window: its start and each step's end
        self._closed: list[list[Any]] = []  # windows that nobody has read yet
        self._waits: list[tuple[Any, Any]] = []  # for batches in those windows
        self._entered: list[tuple[str, Any]] = []  # parts and the marks of their beginnings, likewise
        self._in_window = 0  # samples since it was opened
        self._paused = False  # somebody else looks at the steps
        self._looked_into = False  # they were paused at some time

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.clock = Clock(trainer.strategy.root_device)
        self._began = time.perf_counter()
        self._enter("warmup")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Times batches on the device's line too: there a batch that the device did not wait for takes as long as cutting it."""
        if hasattr(trainer.train_dataloader, "time_waits"):
            trainer.train_dataloader.time_waits(self.clock.mark)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.warm:
            self._enter("warmup")
        elif not self._paused:
            self._open(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._marks is not None:
            self._in_window += batch[0].shape[0] * trainer.world_size
            self._marks.append(self.clock.mark())
        elif self._left > 0:
            self._left -= 1
            if self.warm and not self._paused:
                self._open(trainer)

    @property
    def warm(self) -> bool:
        """Whether the warm-up is over."""
        return self._left == 0

    def pause(self, trainer: pl.Trainer) -> None:
        """Leave out what comes now, until `resume`; both between two steps."""
        self.close(trainer)
        self._paused = self._looked_into = True

    def resume(self, trainer: pl.Trainer) -> None:
        self._paused = False
        if self.warm:
            self._open(trainer)

    def restart_warmup(self, trainer: pl.Trainer) -> None:
        self.close(trainer, "warmup")
        self._left = self.warmup_steps
        if self.warm and not self._paused:
            self._open(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close(trainer, "validation")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._enter("other")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.close(trainer)
        self._read()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._enter("end")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._marks, self._closed, self._waits, self._entered = None, [], [], []  # a window that was cut off measures nothing
        self._ended = self._ended or time.perf_counter()

    def _enter(self, part: str) -> None:
        """What comes now counts as `part` of the time to train."""
        if self._began is not None and self._ended is None:
            self._entered.append((part, self.clock.mark()))

    def _open(self, trainer: pl.Trainer) -> None:
        self._enter("steps")
        take_waits(trainer)
        self._in_window, self._marks = 0, [self._entered[-1][1]]

    def close(self, trainer: pl.Trainer, then: str = "other") -> None:
        """End the window, if one is open. then: the part of the time to train that what comes now belongs to."""
        if self._marks is not None:
            self._waits += take_waits(trainer)
            self.samples += self._in_window
            self.measured_steps += len(self._marks) - 1
            self._closed.append(self._marks)
            self._marks = None
        self._enter(then)

    def _read(self) -> None:
        """Take the times out of the marks, which waits for the device."""
        if not self._closed and len(self._entered) < 2:
            return
        self.clock.synchronize()
        for marks in self._closed:
            self.step_ms += [self.clock.between(a, b) for a, b in pairwise(marks)]
        self.waited_ms += sum(self.clock.between(*wait) for wait in self._waits)
        for (part, begun), (_, ended) in pairwise(self._entered):
            self.parts[part] += self.clock.between(begun, ended) / 1e3
        self._closed, self._waits, self._entered = [], [], self._entered[-1:]

    @property
    def seconds(self) -> float:
        """Of all windows that are over, without what followed a window's last step."""
        self._read()
        return sum(self.step_ms) / 1e3

    @property
    def time_to_train_s(self) -> float:
        """Wall time of fitting so far, evaluation and checkpoints included, summed over resumed parts."""
        if self._began is None:
            return self.earlier_s
        return self.earlier_s + (self._ended or time.perf_counter()) - self._began

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._enter("end")
        self._read()
        self._ended = time.perf_counter()

    @property
    def samples_per_s(self) -> float | None:
        return self.samples / self.seconds if self.samples else None

    def state_dict(self) -> dict[str, Any]:
        return {"time_to_train_s": self.time_to_train_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier_s = state_dict["time_to_train_s"]

    def record(self, flops_per_sample: float | None) -> dict[str, Any]:
        """The speed part of result.json. flops_per_sample: of a training step, forward and backward."""
        rate = self.samples_per_s
        cuts = statistics.quantiles(self.step_ms, n=20) if len(self.step_ms) >= 2 else None
        record = {
            "train_samples_per_s": rate,
            "step_ms_p50": statistics.median(self.step_ms) if self.step_ms else None,
            "step_ms_p95": cuts[18] if cuts else None,
            "measured_steps": self.measured_steps,
            "warmup_steps": self.warmup_steps,
            "data_wait_fraction": self.waited_ms / 1e3 / self.seconds if self.seconds else None,
            "model_tflops_per_s": rate * flops_per_sample / 1e12 if rate and flops_per_sample else None,
            "time_to_train_s": self.time_to_train_s,
            "time_to_train_parts_s": dict(self.parts),
        }
        if rate is None:
            what = "the part of the run after it was resumed" if self.earlier_s else "the run"
            again = "; if_exists=overwrite trains it anew" if self.earlier_s else ""
            within = f"ended within its {self.warmup_steps} warm-up steps (trainer.warmup_steps)"
            if self.warm and self._looked_into:
                within = "had only steps after its warm-up that profile=true looked into; train longer, or leave it out"
            record["train_samples_per_s_reason"] = f"{what} {within}{again}"
        return record
