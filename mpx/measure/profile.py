"""`profile=true`: measure a few steady steps, outside the throughput's window, and say what limits the run.

After the warm-up it measures in this order:
1. undisturbed steps: the time of a step, and its waiting for the batch
2. steps under torch.profiler: when the device computes, and with which kernels; the trace is kept
3. plain steps under a dispatch mode: each operation with its format, FLOPs and bytes

A profiler slows the host but not the device, so the idle time is the undisturbed step less the traced kernels. A step of a CUDA graph is
traced while it is replayed; its operations are those of the plain step, which runs the same kernels. A compiled step has other kernels than
a plain one, so its kernels are listed instead of operations.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.acceleration.apply import Acceleration
from mpx.measure.exclusive import cpu_busy
from mpx.measure.findings import Seen, findings
from mpx.measure.limits import limits_of
from mpx.measure.operations import Operations
from mpx.measure.profile_plan import MIN_BEFORE, MIN_EPOCH_BATCHES, PROFILE_STEPS, RECORDED, TIMED, TRACED, may_begin, steps_to_trace
from mpx.measure.steady import SteadySteps
from mpx.measure.throughput import Throughput
from mpx.measure.trace import busy, read_trace
from mpx.measure.traced_steps import TracedSteps, quiet_profiler
from mpx.measure.windows import Clock
from mpx.precision.modes import MODES, Mode, emulated

FILE = "trace.json.gz"


class State(Enum):
    WAITING = auto()  # for the end of the warm-up, and for enough batches
    TIMING = auto()
    BEFORE_TRACING = auto()  # waits for an epoch with enough batches
    TRACING = auto()
    RECORDING = auto()
    DONE = auto()


class Profile(Callback):
    """folder: for the trace. output_dir: may have this machine's limits, from `mpx.bench`. sampled: interval in optimizer steps at which
    numerics sample. against: why cuda_graphs or compile cannot be advised. own: of a module of the user's own."""

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
        own: bool = False,
    ):
        self.throughput, self.mode, self.folder, self.emulated, self.sampled = throughput, mode, folder, emulated, sampled
        self.output_dir, self.acceleration, self.against, self.own = output_dir, acceleration, against, own
        self.found: dict[str, Any] | None = None
        self._state = State.WAITING
        self._seen = 0  # batches since the training began or the model was pruned
        self._recorded = 0  # plain steps under `_operations`
        self._recording = ExitStack()  # holds the dispatch mode during such a step
        self._trace: TracedSteps | None = None
        self._epoch_batches: int | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.device = trainer.strategy.root_device
        self.clock = Clock(self.device)
        quiet_profiler(self.device)
        if not trainer.is_global_zero:
            self._state = State.DONE

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._state is State.TIMING:
            self.steady.begin()
        elif self._state is State.BEFORE_TRACING:
            self._start_trace(trainer, trainer.num_training_batches)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._state is State.RECORDING:
            self.limits = limits_of(self.device, self.output_dir)
            self._before = trainer.global_step
            self._operations = self._recording.enter_context(Operations(self.mode, self.device, self.limits))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._seen += 1
        self._epoch_batches = trainer.num_training_batches
        done = batch_idx + 1
        left = trainer.num_training_batches - done  # in this epoch
        if self._state is State.WAITING:
            if self.throughput.warm and may_begin(trainer, done, self._seen, self.sampled):
                self._begin(trainer)
        elif self._state is State.TIMING:
            self._time_step(trainer, left)
        elif self._state is State.BEFORE_TRACING:
            self._start_trace(trainer, left)
        elif self._state is State.TRACING:
            if self._trace.step():
                self._state, self._recorded = State.RECORDING, 0
        elif self._state is State.RECORDING:
            self._record_step(trainer)

    def _begin(self, trainer: pl.Trainer) -> None:
        self.throughput.pause()
        self.steady = SteadySteps(self.clock, trainer)
        on_cpu = self.device.type != "cuda"
        self.cpu_busy = cpu_busy() if on_cpu and _loader(trainer) == "resident" else None  # workers would count as other programs
        self._state = State.TIMING
        self.steady.begin()

    def _time_step(self, trainer: pl.Trainer, left: int) -> None:
        self.steady.step()
        if self.steady.steps == TIMED:
            self.steady.end()
            self.timed = self.steady.typical(_loader(trainer))
            self._state = State.BEFORE_TRACING
            self._start_trace(trainer, left)

    def _start_trace(self, trainer: pl.Trainer, left: int) -> None:
        """Start the trace if the epoch has enough batches `left`."""
        count = steps_to_trace(trainer)
        if left >= count + 1:
            self._trace = TracedSteps(self.clock, self.acceleration, count, self.folder / FILE)
            self._trace.start()
            self._state = State.TRACING

    def _record_step(self, trainer: pl.Trainer) -> None:
        self._recording.close()
        self._recorded += 1
        if self._recorded == RECORDED:
            self._finish(trainer)
            self.throughput.resume()  # after reading the trace, which takes seconds

    def _finish(self, trainer: pl.Trainer) -> None:
        self._state = State.DONE
        traced = busy(read_trace(self.folder / FILE))
        if self.device.type == "cuda" and traced is None:
            self.found = {"bound": None, "reason": "the profiler saw no kernels, as where CUPTI may not be used", "operations": []}
            return
        given_up = self.acceleration.given_up()
        compiled = self.acceleration.compiled is not None and "compile" not in given_up
        against = {**self.against, **given_up}
        step_ms, waited_ms = self.timed
        seen = Seen(
            on_gpu=self.device.type == "cuda",
            step_ms=step_ms,
            waited_ms=waited_ms,
            traced=traced,
            operations=self._operations.rows,
            steps=self._trace.count,
            replayed=self._trace.replayed,
            compiled=compiled and (self._trace.compiled > 0 or self._trace.replayed > 0),
            loader=_loader(trainer),
            mode=self.mode.name,
            emulated=self.emulated,
            native=frozenset(name for name, mode in MODES.items() if not emulated(mode, self.device, "auto")),
            devices=trainer.world_size,
            layers=self._operations.layers,
            no_graphs=against.get("cuda_graphs"),
            no_compiling=against.get("compile"),
            own=self.own,
            accumulated=trainer.accumulate_grad_batches,
            updates=trainer.global_step > self._before,
        )
        self.found = {"trace": FILE, "timed_steps": TIMED, "cpu_busy": self.cpu_busy} | findings(seen, self.limits)
        self._operations = self._trace = None

    def restart(self, trainer: pl.Trainer) -> None:
        """The model was pruned: a profile that has begun does not count."""
        if self._state is State.DONE:
            return
        if self._state is not State.WAITING:
            self._leave()
            self.throughput.resume()
        self._state, self._seen = State.WAITING, 0

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._state is State.TIMING:
            self.steady.end()

    on_train_epoch_end = on_validation_start

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._leave()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        self._recording.close()
        if self._trace is not None:
            self._trace.stop()

    def record(self) -> dict[str, Any]:
        """The profile part of result.json, also when the run ended before there was a profile."""
        return self.found if self.found is not None else {"bound": None, "reason": self._missing(), "operations": []}

    def _missing(self) -> str:
        """Why there is no profile."""
        if self._epoch_batches is not None and self._epoch_batches < MIN_EPOCH_BATCHES:
            return (
                f"an epoch has {self._epoch_batches} batch, and a profile needs {MIN_EPOCH_BATCHES} in one; "
                f"lower {'the batch size' if self.own else 'data.batch_size'}, or raise trainer.limit_train_batches"
            )
        return (
            f"the run ended {self._seen} batches after its start or its pruning: a profile needs {PROFILE_STEPS} after the first "
            f"{max(self.throughput.warmup_steps, MIN_BEFORE)} (trainer.warmup_steps), and up to {TRACED} more where epochs are short; "
            "train longer"
        )


def _loader(trainer: pl.Trainer) -> str:
    return getattr(trainer.datamodule, "loader", None) or "workers"
