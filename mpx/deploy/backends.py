"""Ways to call a model: layer by layer, compiled, replayed from a CUDA graph, or by TensorRT; and how long a
call takes.

onnx.py has ONNX Runtime's. A new backend needs its name in mpx/settings/deploy.py, a description in
conf/deploy.yaml and docs/deploy.md, here the reason why a machine lacks it (`lacking`), and in `Served` or
onnx.py the object that calls the model.
"""

import importlib
import importlib.util
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mpx.acceleration.compiled import prepare_compiler
from mpx.acceleration.graph import CudaRecorder
from mpx.deploy import onnx
from mpx.errors import UserError, one_line
from mpx.measure.memory import out_of_memory, reset_peak
from mpx.measure.timing import median_time
from mpx.private.torch_modules import compiler_errors
from mpx.settings.extras import install
from mpx.system.machine import builds_kernels

Call = Callable[[Tensor], Tensor]
# raised by a model that cannot be compiled or recorded
REFUSED: tuple[type[BaseException], ...] = (RuntimeError, *compiler_errors())
SEARCH = {  # by autotune
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}
# Without these options, PyTorch computes what TensorRT fails to build, and any five operations in a row or
# fewer.
TENSORRT = {"pass_through_build_failures": True, "min_block_size": 1, "use_explicit_typing": True}
COMPILED: dict[str, dict[str, Any]] = {  # arguments of torch.compile
    "compile": {},
    "autotune": {"options": SEARCH},
    "tensorrt": {"backend": "torch_tensorrt", "options": TENSORRT},
}
SLOW = ("autotune", "tensorrt")  # they take minutes
ONNX_FORMATS = ("fp32", "int8")
TENSORRT_FORMATS = ("tf32", "fp16", "bf16")  # it multiplies FP32 in TF32
WARMUP = 3  # calls before a recording, to load, compile and choose kernels
BUDGET_S = 1.0  # seconds for the latency, and for the throughput, of one batch size
MIN_CALLS, MAX_CALLS = 10, 2000  # calls whose latency is measured
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def gpu_is_lost() -> bool:
    """Whether a kernel's fault, such as an access to memory that is not its own, has ended CUDA for this
    process.
    """
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def reason_of(error: BaseException) -> str:
    """An error of REFUSED in one line.

    Raises it again if memory ran out or the GPU is lost, since that says nothing about the backend.
    """
    if out_of_memory(error) or gpu_is_lost():
        raise error
    return one_line(error)


def backends(requested: str, fmt: str, device: torch.device) -> list[str]:
    """The backends to measure. Raises UserError if this machine lacks the requested one, or lacks it for this
    format.
    """
    missing = lacking(fmt, device)
    usable = [name for name, reason in missing.items() if reason is None]
    if not usable:
        raise UserError(
            f"format=int8: on a CPU it needs ONNX Runtime ({missing['onnx']}). Install it, or use "
            "format=fp32."
        )
    if requested == "auto":
        return [name for name in usable if name not in SLOW]
    if missing[requested] is not None:
        raise UserError(f"backend={requested}: {missing[requested]}. Use backend=auto or {usable[0]}.")
    return [requested]


def lacking(fmt: str, device: torch.device) -> dict[str, str | None]:
    """Why this machine lacks each backend for this format; None for one that it has."""
    on_cpu = device.type == "cpu"
    no_compiler = (
        None
        if builds_kernels(device.type)
        else "torch.compile finds no compiler with Python's header files here"
    )
    missing: dict[str, str | None] = {
        "eager": None,
        "compile": no_compiler,
        "autotune": no_compiler,
        "graph": "CUDA graphs need a CUDA device" if on_cpu else None,
        "tensorrt": _no_tensorrt(fmt, on_cpu),
        "onnx": onnx.missing() if on_cpu else "mpx calls ONNX Runtime on CPUs only; use accelerator=cpu",
    }
    if on_cpu and fmt == "int8":
        missing |= dict.fromkeys(
            ("eager", "compile", "autotune"), "on a CPU, INT8 products are ONNX Runtime's"
        )
    if on_cpu and fmt not in ONNX_FORMATS:
        missing["onnx"] = f"format={fmt} is not served by ONNX Runtime, but {' and '.join(ONNX_FORMATS)} are"
    return missing


def _no_tensorrt(fmt: str, on_cpu: bool) -> str | None:
    if on_cpu:
        return "TensorRT needs a CUDA device"
    if fmt not in TENSORRT_FORMATS:
        return f"mpx calls TensorRT in {', '.join(TENSORRT_FORMATS)}, not in {fmt}"
    absent = importlib.util.find_spec("torch_tensorrt") is None
    return f"torch_tensorrt is not installed; {install('tensorrt')} brings it" if absent else None


class Served:
    """Calls `model` by a backend, which prepares itself at the first call with each shape.

    A smaller batch runs in the recording of a larger one; the other samples there are left from an earlier
    batch. A result on CUDA lies in the recording's memory and is valid until the next call.
    """

    def __init__(self, model: nn.Module, backend: str, device: torch.device):
        self.model = model
        self.recorded = backend not in ("eager", "tensorrt") and device.type == "cuda"
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.call: Call = model
        if backend == "tensorrt":
            with onnx.as_runtime_errors(), onnx.quiet():
                importlib.import_module("torch_tensorrt")  # makes torch.compile know it
        if backend in COMPILED:
            prepare_compiler()
            self.call = torch.compile(model, dynamic=False, **COMPILED[backend])

    def __call__(self, x: Tensor) -> Tensor:
        if not self.recorded:
            return self.call(x)
        count = len(x)
        larger = (shape for shape in self.recordings if shape[0] >= count and shape[1:] == tuple(x.shape[1:]))
        if (shape := min(larger, default=None)) is None:
            # 2:4 layers search for their algorithms, which is not possible in a compiler or a recording
            self.model(x)
            shape = tuple(x.shape)
            self.recordings[shape] = Recording(self.call, x)
        return self.recordings[shape](x)[:count]


class Recording:
    """A recorded call on an input of one shape. Each replay copies its input into the recorded one's
    memory.
    """

    def __init__(self, call: Call, x: Tensor):
        self.input = x.clone()
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARMUP):
                call(self.input)
        here.wait_stream(aside)
        torch.cuda.empty_cache()
        reset_peak(x.device)  # the calls before search and compile; serving does not need their memory
        outputs: list[Tensor] = []
        self.graph = CudaRecorder().record(lambda: outputs.append(call(self.input)))
        (self.output,) = outputs

    def __call__(self, x: Tensor) -> Tensor:
        self.input[: len(x)].copy_(x)
        self.graph.replay()
        return self.output


def throughput(call: Call, x: Tensor) -> float:
    """Samples per second of calls in a row. Each starts as soon as the device is free."""
    return len(x) / median_time(lambda: call(x), x.device, BUDGET_S).seconds


def latency(call: Call, x: Tensor) -> dict[str, float | int]:
    """Percentiles in ms of single calls, from the input on the device to the result there. Each call is
    waited for.
    """
    times: list[float] = []
    end = time.perf_counter() + BUDGET_S
    while len(times) < MIN_CALLS or (len(times) < MAX_CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        call(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        times.append((time.perf_counter() - start) * 1e3)
    quantiles = torch.tensor(list(PERCENTILES.values()), dtype=torch.float64)
    values = torch.tensor(times, dtype=torch.float64).quantile(quantiles).tolist()
    found = {f"latency_ms_{name}": value for name, value in zip(PERCENTILES, values, strict=True)}
    return found | {"latency_calls": len(times)}


def relative_error(out: Tensor, reference: Tensor) -> float | None:
    """‖out − reference‖ ÷ ‖reference‖; None if that is not finite."""
    error = ((out.double() - reference.double()).norm() / reference.double().norm()).item()
    return error if math.isfinite(error) else None
