"""Measure throughput (samples in the timed windows ÷ their time), and what the rest of the time to train goes into.

On a CUDA device a window goes from one event to another on the device's time line. That gives the same times as synchronising at its ends,
but the host does not wait, so validation is queued while the last steps still run.
"""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from mpx.measure.batches import samples_in

PARTS = ("warmup", "steps", "validation", "other", "end")  # what the time to train goes into


class Clock:
    """Marks on the device's time line. `mark` does not synchronise; `between` needs a `synchronize` before it."""

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
        """The milliseconds from one mark to the other."""
        return first.elapsed_time(second) if self.device.type == "cuda" else (second - first) * 1e3


def take_waits(trainer: pl.Trainer) -> list[tuple[Any, Any]]:
    """(mark of the request, mark of the arrival) of each batch since the last call; none where the loader does not time them."""
    return getattr(trainer.train_dataloader, "take_waits", list)()


class Throughput(Callback):
    """Times training steps in windows, in any Trainer: `pl.Trainer(callbacks=[mpx.Throughput()])`.

    The windows leave out the first `warmup_steps` steps (also after a resume and after
    `restart_warmup`, because of compilation, autotuning and pruning), evaluation, and everything between epochs.

    parts: the seconds of the time to train, by purpose, of this process only:
    - `warmup`: from the start of fitting to the end of the warm-up steps
    - `steps`: the windows
    - `validation`
    - `end`: until the last checkpoint is on the disk and the device is cleared
    - `other`: between epochs (reports, checkpoints, the next epoch's order), pruning and profiling

    samples: returns the number of samples in a batch. logs: log `speed/train_samples_per_s` after each epoch.
    `samples_per_s` is the throughput so far, `record(None)` everything that was measured.
    """

    def __init__(self, warmup_steps: int = 10, *, samples: Callable[[Any], int] = samples_in, logs: bool = True):
        self.warmup_steps, self.samples_of, self.logs = warmup_steps, samples, logs
        self.samples = self.measured_steps = 0
        self.waited_ms = 0.0
        self.step_ms: list[float] = []
        self.parts = dict.fromkeys(PARTS, 0.0)
        self.earlier_s = 0.0  # time to train of the processes before a resume
        self._left = warmup_steps  # warm-up steps that remain
        self._began: float | None = None
        self._ended: float | None = None
        self._marks: list[Any] | None = None  # of the open window: its start and each step's end
        self._closed: list[list[Any]] = []  # windows whose marks `_read` has not read yet
        self._waits: list[tuple[Any, Any]] = []  # for batches in those windows
        self._entered: list[tuple[str, Any]] = []  # parts and the marks of their starts, not read yet
        self._in_window = 0  # samples in the open window
        self._paused = False  # a profile has the steps
        self._profiled = False  # it was paused at some time
        self._timed = True  # the loader marks the waits for its batches

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.clock = Clock(trainer.strategy.root_device)
        self._began = time.perf_counter()
        self._enter("warmup")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Have the loader mark batches on the device's time line, where only a batch that the device waits for takes long."""
        self._timed = hasattr(trainer.train_dataloader, "time_waits")
        if self._timed:
            trainer.train_dataloader.time_waits(self.clock.mark)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.warm:
            self._enter("warmup")
        elif not self._paused:
            self._open(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._marks is not None:
            self._in_window += self.samples_of(batch) * trainer.world_size
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
        """Leave out everything until `resume`. Call both between two steps."""
        self.close(trainer)
        self._paused = self._profiled = True

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
        if self.logs and self.samples_per_s is not None:
            for logger in trainer.loggers:
                logger.log_metrics({"speed/train_samples_per_s": self.samples_per_s}, step=trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._enter("end")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._marks, self._closed, self._waits, self._entered = None, [], [], []  # an interrupted window measures nothing
        self._ended = self._ended or time.perf_counter()

    def _enter(self, part: str) -> None:
        """From now on, time counts as `part` of the time to train."""
        if self._began is not None and self._ended is None:
            self._entered.append((part, self.clock.mark()))

    def _open(self, trainer: pl.Trainer) -> None:
        self._enter("steps")
        take_waits(trainer)
        self._in_window, self._marks = 0, [self._entered[-1][1]]

    def close(self, trainer: pl.Trainer, then: str = "other") -> None:
        """End the window, if one is open. then: the part of the time to train that begins now."""
        if self._marks is not None:
            self._waits += take_waits(trainer)
            self.samples += self._in_window
            self.measured_steps += len(self._marks) - 1
            self._closed.append(self._marks)
            self._marks = None
        self._enter(then)

    def _read(self) -> None:
        """Read the times from the marks. This waits for the device."""
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
        """The time of all closed windows, each to the end of its last step."""
        self._read()
        return sum(self.step_ms) / 1e3

    @property
    def time_to_train_s(self) -> float:
        """The wall time of fitting so far, with evaluation and checkpoints, summed over the processes of a resumed run."""
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
        """The speed part of result.json. flops_per_sample: of the forward and backward pass."""
        rate = self.samples_per_s
        cuts = statistics.quantiles(self.step_ms, n=20) if len(self.step_ms) >= 2 else None
        record = {
            "train_samples_per_s": rate,
            "step_ms_p50": statistics.median(self.step_ms) if self.step_ms else None,
            "step_ms_p95": cuts[18] if cuts else None,
            "measured_steps": self.measured_steps,
            "warmup_steps": self.warmup_steps,
            "data_wait_fraction": self.waited_ms / 1e3 / self.seconds if self.seconds and self._timed else None,
            "model_tflops_per_s": rate * flops_per_sample / 1e12 if rate and flops_per_sample else None,
            "time_to_train_s": self.time_to_train_s,
            "time_to_train_parts_s": dict(self.parts),
        }
        if not self._timed:
            record["data_wait_fraction_reason"] = "only mpx's own loaders are timed"
        if rate is None:
            what = "the part of the run after it was resumed" if self.earlier_s else "the run"
            again = "; if_exists=overwrite trains it anew" if self.earlier_s else ""
            within = f"ended within its {self.warmup_steps} warm-up steps (trainer.warmup_steps)"
            if self.warm and self._profiled:
                within = "had only steps after its warm-up that profile=true looked into; train longer, or leave it out"
            record["train_samples_per_s_reason"] = f"{what} {within}{again}"
        return record
