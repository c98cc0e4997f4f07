"""`profile=true`: trace a few steps with torch.profiler after the warm-up, and say what limits the run.

The traced steps are outside the throughput's windows. A profiler slows the host but not the device, so a
step's time is that of the throughput, and only what the device computes is taken from the trace.

A step takes at least as long as each of these: waiting for its batch (input), launching every operation from
the host (launch overhead), and computing on the device, which multiplies matrices (arithmetic) or moves data
(memory). A narrower format makes the arithmetic faster and halves the bytes. It does not change input and
launch overhead.
"""

import gzip
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.profiler import ProfilerActivity, schedule
from torch.profiler import profile as profiler

from mpx.measure.throughput import Throughput
from mpx.precision.kernels import classify

FILE = "trace.json.gz"
MIN_BEFORE = 6  # batches before a profile: recording a CUDA graph and compiling are over by then
TRACED = 5  # steps; the profiler loads in one more before them
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # Kineto's categories (libkineto/src/output_json.cpp)
# PyTorch's operations that multiply matrices
PRODUCTS = re.compile(r"conv|rnn|lstm|gru|::_?(add|b|badd|int_|scaled_)*mm|attention")

IDLE = 0.25  # share of a step; a device that idles longer gains little from faster arithmetic
MOSTLY = 0.5  # of the idle time: waiting for batches; of the computing: products of matrices
FEW_CORES = 0.8  # share of the time in products; if less of it is on Tensor Cores, the sentence says so


@dataclass(frozen=True)
class Operation:
    """A kernel of the GPU, or one of PyTorch's operations on a CPU, in a step."""

    operation: str
    calls: float
    ms: float  # without the operations that it calls
    share: float  # of the time in all operations
    format: str | None  # of a GPU's kernel that multiplies matrices
    tensor_cores: bool | None
    product: bool  # multiplies matrices


@dataclass(frozen=True)
class Traced:
    """steps: that the trace holds. busy_ms: of a step, in which the device computes; on a CPU: inside
    operations. launches: of a step, kernels and copies; None on a CPU.
    """

    steps: int
    operations: tuple[Operation, ...]
    busy_ms: float
    launches: float | None

    @property
    def products(self) -> float:
        """The share of the time in operations of those that multiply matrices."""
        return sum(row.share for row in self.operations if row.product)

    @property
    def on_tensor_cores(self) -> float:
        """The same, of products on Tensor Cores."""
        return sum(row.share for row in self.operations if row.product and row.tensor_cores)


class Profile(Callback):
    """folder: for the trace. sampled: interval in optimizer steps at which numerics sample.

    emulated: whether the precision is. against: why cuda_graphs or compile cannot be advised.
    """

    def __init__(
        self,
        throughput: Throughput,
        folder: Path,
        *,
        sampled: int,
        emulated: bool,
        against: Mapping[str, str],
    ):
        self.throughput, self.folder, self.sampled = throughput, folder, sampled
        self.emulated, self.against = emulated, against
        self.traced: Traced | None = None
        self._profiler: profiler | None = None
        self._device = torch.device("cpu")
        self._seen = 0  # batches since the training began or the model was pruned
        self._steps = self._left = 0  # that are traced, and of these those to come

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._device = trainer.strategy.root_device
        # otherwise the library reports its own stages on stderr
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        # setting CUPTI up twice beside a CUDA graph can crash (torch/profiler/profiler.py)
        if self._device.type == "cuda":
            os.environ |= {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._seen += 1
        if self._profiler is not None:
            self._step(self._profiler)
        elif self.traced is None and self._may_begin(trainer, batch_idx + 1):
            self._begin(trainer)

    def _may_begin(self, trainer: pl.Trainer, done: int) -> bool:
        """Whether the rest of this epoch has steps enough after its warm-up, of which numerics sample
        none.
        """
        if not (trainer.is_global_zero and self.throughput.warm and self._seen >= MIN_BEFORE):
            return False
        until_sample = -trainer.global_step % self.sampled
        if until_sample <= TRACED < self.sampled:
            return False
        batches = trainer.num_training_batches
        last_step = trainer.max_steps if trainer.max_steps > 0 else math.inf
        left = min(batches - done, (last_step - trainer.global_step) * trainer.accumulate_grad_batches)
        return left > steps_in(batches)

    def _begin(self, trainer: pl.Trainer) -> None:
        self.throughput.pause()
        self._steps = steps_in(trainer.num_training_batches)
        self._left = self._steps + 1
        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])
        steps = schedule(wait=0, warmup=1, active=self._steps, repeat=1)
        self._profiler = profiler(
            activities=kinds, schedule=steps, on_trace_ready=self._keep, acc_events=True
        )
        self._profiler.start()

    def _step(self, running: profiler) -> None:
        self._left -= 1
        # the device's work for a step lies within it
        if self._left in (self._steps, 0) and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        running.step()
        if self._left == 0:
            self._stop()
            self.throughput.resume()

    def _keep(self, finished: profiler) -> None:
        path = self.folder / FILE
        finished.export_chrome_trace(str(path))
        if self._device.type == "cuda":
            self.traced = of_gpu(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"], self._steps)
        else:
            times = {
                event.key: (event.count, event.self_cpu_time_total / 1e3) for event in finished.key_averages()
            }
            self.traced = of_cpu(times, self._steps)

    def _stop(self) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def restart(self, trainer: pl.Trainer) -> None:
        """The model was pruned: a trace that has begun does not count."""
        if self._profiler is not None:
            self._stop()
            self.traced = None
            self.throughput.resume()
        self._seen = 0

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def record(self, speed: Mapping[str, Any], precision: Mapping[str, Any]) -> dict[str, Any]:
        """The profile part of result.json. speed, precision: those parts of it."""
        if self.traced is None:
            warm = max(self.throughput.warmup_steps, MIN_BEFORE)
            reason = (
                f"no epoch had enough batches after the first {warm} of the run or of its pruning "
                "(trainer.warmup_steps): train longer"
            )
            return {"bound": None, "reason": reason, "operations": []}
        operations = self.traced.operations
        about = {"trace": FILE, "steps": self.traced.steps, "busy_ms": self.traced.busy_ms}
        about |= {"launches": self.traced.launches, "step_ms": speed["step_ms_p50"]}
        about["operations"] = [asdict(row) for row in operations]
        if not operations or speed["step_ms_p50"] is None:
            no_operations = "the profiler saw no operations, as where CUPTI may not be used"
            return about | {"bound": None, "reason": "no step was timed" if operations else no_operations}
        in_use = [name for name in ("cuda_graphs", "compile") if speed["chosen"][name] not in (False, "off")]
        bound, sentence = bottleneck(
            self.traced, speed["step_ms_p50"], speed["data_wait_fraction"], precision["mode"],
            emulated=self.emulated, against={**dict.fromkeys(in_use, "in use"), **self.against},
        )  # fmt: skip
        return about | {"bound": bound, "sentence": sentence}


def steps_in(batches: int | float) -> int:
    """Steps to trace in an epoch, after its first batch and the one in which the profiler loads."""
    return int(max(1, min(TRACED, batches - 2)))


def of_gpu(events: Iterable[Mapping[str, Any]], steps: int) -> Traced:
    """The kernels and copies in a trace. Kernels that overlap on several streams count once in `busy_ms`."""
    spans = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in ON_DEVICE)
    busy, reached = 0.0, -math.inf
    times: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for start, end, name in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
        calls, ms = times[name]
        times[name] = calls + 1, ms + (end - start) / 1e3
    return Traced(steps, _rows(times, steps, classify), busy / 1e3 / steps, len(spans) / steps)


def of_cpu(times: Mapping[str, tuple[int, float]], steps: int) -> Traced:
    """times: name -> (calls, milliseconds of its own). What is no operation, such as autograd's calls, is
    left out.
    """
    of_operations = {
        name: value for name, value in times.items() if "::" in name and not name.startswith("autograd::")
    }
    rows = _rows(of_operations, steps, lambda name: (None, None) if PRODUCTS.search(name) else None)
    return Traced(steps, rows, sum(row.ms for row in rows), None)


def _rows(
    times: Mapping[str, tuple[int, float]],
    steps: int,
    product: Callable[[str], tuple[str | None, bool | None] | None],
) -> tuple[Operation, ...]:
    """product: the format, and whether on Tensor Cores, of an operation that multiplies matrices, else
    None.
    """
    total = sum(ms for _, ms in times.values()) or 1.0
    ordered = sorted(times.items(), key=lambda item: -item[1][1])
    return tuple(
        Operation(
            name, calls / steps, ms / steps, ms / total, *(product(name) or (None, None)),
            product=product(name) is not None,
        )
        for name, (calls, ms) in ordered
    )  # fmt: skip


def bottleneck(
    traced: Traced, step_ms: float, waited: float | None, mode: str, *,
    emulated: bool, against: Mapping[str, str],
) -> tuple[str, str]:  # fmt: skip
    """(what limits the run, a sentence that says so and what to do).

    step_ms: without a profiler. waited: the share of a step in which the host waits for the batch; None: of a
    loader that is not timed. mode: the precision. against: why cuda_graphs or compile cannot be advised.
    """
    if emulated:
        return "emulation", (
            f"precision={mode} is emulated here: these speeds are not those of hardware that has it."
        )
    idle = max(0.0, 1 - traced.busy_ms / step_ms)  # share of a step in which the device does not compute
    if idle > IDLE and waited is not None and waited > MOSTLY * idle:
        return "input", (
            f"Limited by input: waiting for the batch takes {waited:.0%} of a step. Use "
            "data.loader=resident, or more data.workers. A narrower format does not help."
        )
    if idle > IDLE:
        unknown = " The loader's waits are not timed and may be part of it." if waited is None else ""
        return "launch overhead", _launching(traced, idle, unknown, against)
    if traced.products > MOSTLY:
        return "arithmetic", _multiplying(traced, mode)
    advice = "" if "compile" in against else " trainer.compile=default joins such operations."
    return "memory", (
        f"Limited by memory: {1 - traced.products:.0%} of the computing moves data and multiplies no "
        f"matrices. A 16-bit format halves the bytes.{advice}"
    )


def _launching(traced: Traced, idle: float, unknown: str, against: Mapping[str, str]) -> str:
    graphs, what = "", "many short operations"
    if traced.launches is not None:
        graphs = "" if "cuda_graphs" in against else "trainer.cuda_graphs=true or "
        what = f"{traced.launches:,.0f} kernels and copies"
    return (
        f"Limited by launch overhead: the device computes in {1 - idle:.0%} of a step, which has {what}."
        f"{unknown} Use {graphs}a larger batch. A narrower format does not help."
    )


def _multiplying(traced: Traced, mode: str) -> str:
    said = f"Limited by arithmetic: products of matrices take {traced.products:.0%} of the computing"
    if traced.launches is None:
        return f"{said}. Use a narrower format that this CPU multiplies faster, or a smaller model."
    cores = traced.on_tensor_cores / traced.products
    if cores < FEW_CORES:
        return (
            f"{said}, and only {cores:.0%} of that is on Tensor Cores. Use precision=amp, and sizes "
            "that are multiples of 8."
        )
    return (
        f"{said}, {cores:.0%} of it on Tensor Cores, in precision={mode}. A narrower format makes it faster."
    )
