"""Ways to call a model: layer by layer, compiled, or recorded in a CUDA graph, which then is replayed."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpx.acceleration.compiled import quiet
from mpx.acceleration.graph import CudaRecorder
from mpx.errors import UserError
from mpx.machine import builds_kernels
from mpx.private.torch_modules import compiler_errors

REFUSED = (RuntimeError, *compiler_errors())  # what a model raises that cannot be compiled or recorded
WARMUP = 3  # calls before the recording, in which kernels are loaded, compiled and chosen


def out_of_memory(error: BaseException) -> bool:
    """A CPU's allocator has no error class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def reason_of(error: BaseException) -> str:
    """One of REFUSED in one line. Raises it again where memory ran out, which says nothing about the backend."""
    if out_of_memory(error):
        raise error
    return " ".join(str(error).split())[:200]


def backends(wish: str, device: torch.device) -> list[str]:
    """Those to measure. Raises UserError for one that this machine does not have."""
    missing = {
        "compile": None if builds_kernels(device.type) else "torch.compile finds no compiler with Python's header files here",
        "graph": None if device.type == "cuda" else "CUDA graphs need a CUDA device",
    }
    if wish == "auto":
        return ["eager", *(name for name, reason in missing.items() if reason is None)]
    if missing.get(wish) is not None:
        raise UserError(f"backend={wish}: {missing[wish]}. Use backend=auto or eager.")
    return [wish]


class Served:
    """Calls `model` by a backend. What a backend prepares, it prepares at the first call with a shape.

    A result on CUDA lies in the memory of the recording and is valid until the next call.
    """

    def __init__(self, model: nn.Module, backend: str, device: torch.device):
        self.model, self.backend = model, backend
        self.recorded = backend != "eager" and device.type == "cuda"
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.call: Callable[[Tensor], Tensor] = model
        if backend == "compile":
            quiet()
            self.call = torch.compile(model, dynamic=False)

    def __call__(self, x: Tensor) -> Tensor:
        if not self.recorded:
            return self.call(x)
        if tuple(x.shape) not in self.recordings:
            self.model(x)  # 2:4 layers search their algorithms, which no compiler and no recording can
            self.recordings[tuple(x.shape)] = Recording(self.call, x)
        return self.recordings[tuple(x.shape)](x)


class Recording:
    """A call on an input of one shape, recorded. Each replay copies its input to the memory of the recorded one."""

    def __init__(self, call: Callable[[Tensor], Tensor], x: Tensor):
        self.input = x.clone()
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARMUP):
                call(self.input)
        here.wait_stream(aside)
        found: list[Tensor] = []
        self.graph = CudaRecorder().record(lambda: found.append(call(self.input)))
        (self.output,) = found

    def __call__(self, x: Tensor) -> Tensor:
        self.input.copy_(x)
        self.graph.replay()
        return self.output
