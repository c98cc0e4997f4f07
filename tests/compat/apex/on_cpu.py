"""A CPU in the place of the GPU that apex's scripts ask for: what they put on the device "cuda" stays on the
CPU.
"""

from contextlib import nullcontext
from typing import Any

import torch

# PyTorch imports it later by itself, and then stumbles over functions that are not its own
import torch._dynamo
from torch import Tensor
from torch.overrides import TorchFunctionMode

TYPES = {torch.FloatTensor: torch.float32, torch.HalfTensor: torch.float16, torch.IntTensor: torch.int32}


class Stream:
    """Of a device that has none."""

    def wait_stream(self, other: "Stream") -> None:
        """There is nothing to wait for."""


class OnCPU(TorchFunctionMode):
    """For one whole process. The names of types stay those of a GPU, which is what apex's tests compare."""

    def __enter__(self) -> "OnCPU":
        for name in ("FloatTensor", "HalfTensor", "IntTensor"):
            setattr(torch.cuda, name, getattr(torch, name))
        torch.cuda.Stream, torch.cuda.current_stream = Stream, Stream
        torch.cuda.stream = lambda stream: nullcontext()
        Tensor.record_stream = lambda self, stream: None
        torch.UntypedStorage.cuda = lambda self, *_: self
        torch.cuda.synchronize = torch.cuda.set_device = lambda *_: None
        torch.set_default_tensor_type = lambda kind: torch.set_default_dtype(TYPES[kind])
        return super().__enter__()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*map(_stays, args), **{name: _stays(value) for name, value in kwargs.items()})


def _stays(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value
