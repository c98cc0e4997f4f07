"""Ways to call a model: layer by layer, compiled, or replayed from a CUDA graph; and how long a call takes.

onnx.py has ONNX Runtime's. A new backend needs its name in mpx/settings/deploy.py, a description in
conf/deploy.yaml and docs/deploy.md, here the reason why a machine lacks it (`lacking`), and in `Served` or
onnx.py the object that calls the model.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
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
from mpx.system.machine import builds_kernels

Call = Callable[[Tensor], Tensor]
# gets a layer's name, the layer, its inputs and its output
Look = Callable[[str, nn.Module, tuple[Any, ...], Any], None]
# raised by a model that cannot be compiled or recorded
REFUSED: tuple[type[BaseException], ...] = (RuntimeError, *compiler_errors())
ONNX_FORMATS = ("fp32", "int8")
WARMUP = 3  # calls before a recording, to load, compile and choose kernels
BUDGET_S = 1.0  # seconds for the latency, and for the throughput, of one batch size
MIN_CALLS, MAX_CALLS = 10, 2000  # calls whose latency is measured
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def reason_of(error: BaseException) -> str:
    """An error of REFUSED in one line.

    Raises it again if memory ran out, since that says nothing about the backend.
    """
    if out_of_memory(error):
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
        return usable
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
        "graph": "CUDA graphs need a CUDA device" if on_cpu else None,
        "onnx": onnx.missing() if on_cpu else "mpx calls ONNX Runtime on CPUs only; use accelerator=cpu",
    }
    if on_cpu and fmt == "int8":
        missing |= dict.fromkeys(("eager", "compile"), "on a CPU, INT8 products are ONNX Runtime's")
    if on_cpu and fmt not in ONNX_FORMATS:
        missing["onnx"] = f"format={fmt} is not served by ONNX Runtime, but {' and '.join(ONNX_FORMATS)} are"
    return missing


class Served:
    """Calls `model` by a backend, which prepares itself at the first call with each shape.

    A smaller batch runs in the recording of a larger one; the other samples there are left from an earlier
    batch. A result on CUDA lies in the recording's memory and is valid until the next call.
    """

    def __init__(self, model: nn.Module, backend: str, device: torch.device):
        self.model = model
        self.recorded = backend != "eager" and device.type == "cuda"
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.call: Call = model
        if backend == "compile":
            prepare_compiler()
            self.call = torch.compile(model, dynamic=False)

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


@contextmanager
def forward_hooks(model: nn.Module, names: Iterable[str], look: Look) -> Iterator[None]:
    """A context in which `look` follows each call of a named layer."""
    with ExitStack() as hooks:
        for name in names:
            layer = model.get_submodule(name)
            hooks.enter_context(layer.register_forward_hook(partial(look, name)))
        yield


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
    latencies = {f"latency_ms_{name}": value for name, value in zip(PERCENTILES, values, strict=True)}
    return latencies | {"latency_calls": len(times)}


def relative_error(out: Tensor, reference: Tensor) -> float | None:
    """‖out − reference‖ ÷ ‖reference‖; None if that is not finite."""
    error = ((out.double() - reference.double()).norm() / reference.double().norm()).item()
    return error if math.isfinite(error) else None
