"""`profile=true`: look closely at a few steady steps, outside the throughput's window, and say what holds the run back.

After the warm-up come, in this order: TIMED undisturbed steps (how long a step takes and waits for data), up to TRACED steps under
torch.profiler (when the device computes: its trace is kept), and one plain step under a dispatch mode (which operation, in which format,
with how many FLOPs and bytes). A profiler slows the host down but not the device, so idle time is the undisturbed step less the traced
kernels. Steps that a CUDA graph repeats are traced as they are repeated; their operations are looked up in the plain step, which runs the
same kernels. A compiled step has kernels of its own, and is listed by these.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch.profiler import ProfilerActivity, profile, schedule

from mpx.acceleration.apply import Acceleration
from mpx.measure.exclusive import cpu_busy
from mpx.measure.findings import Seen, findings
from mpx.measure.limits import limits_of
from mpx.measure.operations import Operations
from mpx.measure.steady import SteadySteps
from mpx.measure.throughput import Clock, Throughput
from mpx.measure.trace import busy, read_trace
from mpx.precision.modes import MODES, Mode, emulated

TIMED, TRACED, LEAST_BEFORE = 10, 5, 6  # batches; the third: before anything, for a recording and a compilation to be over
LOOKED_INTO = 2  # plain steps, of which the last counts: in the first cuDNN's search meets what it has not seen
WHOLE = TIMED + TRACED + 1 + LOOKED_INTO  # one is traced and not kept
LEAST_OF_AN_EPOCH = 2  # batches: a trace lies in one epoch, and begins with one that is not kept
FILE = "trace.json.gz"


class Profile(Callback):
    """folder: gets the trace. output_dir: where `mpx.bench` may have left this machine's limits. sampled: numerics sample a step every so
    many optimizer steps; where possible such a step is kept out. against: why cuda_graphs or compile cannot be advised."""

    def __init__(
        self,
        throughput: Throughput,
        mode: Mode,
        folder: Path,
        *,
        emulated: bool,
        sampled: int,
        output_dir: str | Path,
        acceleration: Acceleration,
        against: Mapping[str, str],
    ):
        self.throughput, self.mode, self.folder, self.emulated, self.sampled = throughput, mode, folder, emulated, sampled
        self.output_dir, self.acceleration, self.against = output_dir, acceleration, against
        self.found: dict[str, Any] | None = None
        self._state, self._seen, self._operations, self._profiler, self._looking = "waiting", 0, None, None, False
        self._epoch_batches: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._steps = 0  # traced
        self._replayed = self._compiled = self._looked = 0

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.device = trainer.strategy.root_device
        self.clock = Clock(self.device)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler reports its own stages on stderr
        if self.device.type == "cuda":  # CUPTI, taken down and set up again beside a CUDA graph, can crash (torch/profiler/profiler.py)
            os.environ |= {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}
        if not trainer.is_global_zero:
            self._state = "done"

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._state == "timing":
            self.steady.begin()
        elif self._state == "before tracing":
            self._start_trace(trainer, trainer.num_training_batches)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._state == "looking":
            self.limits = limits_of(self.device, self.output_dir)
            self._operations = Operations(self.mode, self.device, self.limits)
            self._operations.__enter__()
            self._looking = True

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._seen += 1  # since the start, or the newest pruning
        self._epoch_batches = trainer.num_training_batches
        left = trainer.num_training_batches - batch_idx - 1  # in this epoch
        if self._state == "waiting" and self._may_begin(trainer, batch_idx + 1):
            self._pause(trainer)
        elif self._state == "timing":
            self.steady.step()
            if self.steady.steps == TIMED:
                self.steady.end()
                self.timed = self.steady.typical(_loader(trainer))
                self._state = "before tracing"
                self._start_trace(trainer, left)
        elif self._state == "before tracing":
            self._start_trace(trainer, left)
        elif self._state == "tracing":
            self._trace_step()
        elif self._state == "looking":
            self._look_away()
            self._looked += 1
            if self._looked == LOOKED_INTO:
                self._finish(trainer)
                self.throughput.resume(trainer)  # only now: reading the trace takes seconds

    def _may_begin(self, trainer: pl.Trainer, done: int) -> bool:
        """done: batches of this epoch. What is begun must come to its end, or steps would neither be timed nor looked into."""
        until_sample = -trainer.global_step % self.sampled
        ready = self.throughput.warm and self._seen >= LEAST_BEFORE and (until_sample >= WHOLE or self.sampled <= WHOLE)
        if not ready or trainer.num_training_batches < LEAST_OF_AN_EPOCH:
            return False
        traced = _traced(trainer)
        in_one_epoch = trainer.num_training_batches - done >= TIMED + traced + 1
        unused = 0 if in_one_epoch else traced  # at most, between the timing and the trace
        return batches_left(trainer, done) >= TIMED + unused + traced + 1 + LOOKED_INTO

    def _pause(self, trainer: pl.Trainer) -> None:
        self.throughput.pause(trainer)
        self.steady = SteadySteps(self.clock, trainer)
        on_cpu = self.device.type != "cuda"
        self.cpu_busy = cpu_busy() if on_cpu and _loader(trainer) == "resident" else None  # workers would count as others
        self._state = "timing"
        self.steady.begin()

    def _start_trace(self, trainer: pl.Trainer, left: int) -> None:
        """If the epoch has enough batches `left`: tracing begins with one that is not kept, in which the profiler loads."""
        self._active = _traced(trainer)
        if left < self._active + 1:
            return
        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])
        self._profiler = profile(
            activities=kinds, schedule=schedule(wait=0, warmup=1, active=self._active, repeat=1), on_trace_ready=self._keep, acc_events=True
        )
        self._reset()
        self._state = "tracing"
        self._profiler.start()

    def _keep(self, profiler: Any) -> None:
        profiler.export_chrome_trace(str(self.folder / FILE))

    def _trace_step(self) -> None:
        self._steps += 1
        last = self._steps == self._active + 1
        if self._steps == 1 or last:  # so that what the device does for a step lies within it
            self.clock.synchronize()
        if self._steps == 1:
            self._before = self.acceleration.counts()
        if last:
            self._replayed, self._compiled = (
                after - before for after, before in zip(self.acceleration.counts(), self._before, strict=True)
            )
        self._profiler.step()
        if last:
            self._stop_profiler()
            self._state = "looking"

    def _stop_profiler(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _finish(self, trainer: pl.Trainer) -> None:
        self._state = "done"
        traced, on_gpu = busy(read_trace(self.folder / FILE)), self.device.type == "cuda"
        if on_gpu and traced is None:
            self.found = {"bound": None, "reason": "the profiler saw no kernels, as where CUPTI may not be used", "operations": []}
            return
        given_up = self.acceleration.given_up()
        compiled = self.acceleration.compiled is not None and "compile" not in given_up and (self._compiled > 0 or self._replayed > 0)
        against = {**self.against, **given_up}
        step_ms, waited_ms = self.timed
        seen = Seen(
            on_gpu=on_gpu,
            step_ms=step_ms,
            waited_ms=waited_ms,
            traced=traced,
            operations=self._operations.rows,
            steps=self._active,
            replayed=self._replayed,
            compiled=compiled,
            loader=_loader(trainer),
            mode=self.mode.name,
            emulated=self.emulated,
            native=frozenset(name for name, mode in MODES.items() if not emulated(mode, self.device, "auto")),
            devices=trainer.world_size,
            layers=self._operations.layers,
            no_graphs=against.get("cuda_graphs"),
            no_compiling=against.get("compile"),
        )
        self.found = {"trace": FILE, "timed_steps": TIMED, "cpu_busy": self.cpu_busy} | findings(seen, self.limits)
        self._operations = None

    def restart(self, trainer: pl.Trainer) -> None:
        """The model was pruned meanwhile: what was begun does not count."""
        if self._state == "done":
            return
        if self._state != "waiting":
            self._leave()
            self.throughput.resume(trainer)
        self._state, self._seen = "waiting", 0
        self._reset()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._state == "timing":
            self.steady.end()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._looking:
            self._look_away()
        self._stop_profiler()

    def _look_away(self) -> None:
        self._looking = False
        self._operations.__exit__(None, None, None)

    def record(self) -> dict[str, Any]:
        """For result.json, also when the run ended before there was anything to say."""
        if self.found is not None:
            return self.found
        if self._epoch_batches is not None and self._epoch_batches < LEAST_OF_AN_EPOCH:
            reason = f"an epoch has {self._epoch_batches} batch, and a profile needs {LEAST_OF_AN_EPOCH} in one; "
            reason += "lower data.batch_size, or raise trainer.limit_train_batches"
            return {"bound": None, "reason": reason, "operations": []}
        reason = (
            f"the run ended {self._seen} batches after its start or its pruning: a profile needs {WHOLE} after the first "
            f"{max(self.throughput.warmup_steps, LEAST_BEFORE)} (trainer.warmup_steps), and up to {TRACED} more where epochs are short; "
            "train longer"
        )
        return {"bound": None, "reason": reason, "operations": []}


def _loader(trainer: pl.Trainer) -> str:
    return getattr(trainer.datamodule, "loader", None) or "workers"


def _traced(trainer: pl.Trainer) -> int:
    """Steps that the trace keeps: those that an epoch has room for beside the one that it does not keep."""
    return min(TRACED, trainer.num_training_batches - 1)


def batches_left(trainer: pl.Trainer, done: int) -> int:
    """Of the whole training, after `done` batches of this epoch and their optimizer steps."""
    batches, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    left = batches - done
    by_epochs = left + (trainer.max_epochs - trainer.current_epoch - 1) * batches
    if trainer.max_steps == -1:
        return by_epochs
    steps, of_an_epoch = trainer.max_steps - trainer.global_step, math.ceil(batches / accumulated)
    here = of_an_epoch - done // accumulated if left else 0
    if steps < here:
        return steps * accumulated - done % accumulated
    epochs, rest = divmod(steps - here, of_an_epoch)
    return min(by_epochs, left + epochs * batches + rest * accumulated)
