"""The operations of one training step: how long each takes the device, in which format, and how much it computes and moves.

Floating point operations are counted from shapes. Bytes are the least that must move: every operand read once, every result written once.
"""

import time
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpx.measure.flops import operation_flops
from mpx.measure.limits import Limits
from mpx.precision.formats import STORED
from mpx.precision.kernels import classify
from mpx.precision.modes import Mode
from mpx.precision.ops import inside, multiplied

MARK = "mpx.profile"
NAMES = STORED | {torch.int8: "int8", torch.int64: "int64"}
LOOKS_UP = ("embedding", "index", "index_select", "gather")  # read as much of the first operand as they give back
OVERWRITES = ("copy_", "fill_", "zero_")  # the first operand is written, not read


@dataclass
class Operation:
    """One call, or equal calls together. ms: on the device, or on a CPU."""

    name: str  # ATen's without "aten.", or a kernel's
    fmt: str | None  # in which it multiplies, or computes
    multiplies: bool  # matrices, with themselves or in a convolution, an attention, an RNN
    tensor_cores: bool | None = None  # None: not seen, or nothing that could use them
    calls: int = 1
    ms: float = 0.0
    flops: int = 0
    moved: int = 0  # bytes
    least_ms: float | None = None  # that the device's limits allow; None: unknown
    bound: str | None = None  # the limit: "arithmetic" or "memory"
    kernels: set[str] = field(default_factory=set)

    @property
    def roofline(self) -> float | None:
        """The share of the device's limit that was reached."""
        return self.least_ms / self.ms if self.least_ms is not None and self.ms else None


class Operations(TorchDispatchMode):
    """Enter it around one training step; afterwards `rows` has what ran, the longest first. On CUDA it profiles the step as well."""

    def __init__(self, mode: Mode, device: torch.device, limits: Limits):
        super().__init__()
        self.mode, self.device, self.limits = mode, device, limits
        self.calls: list[Operation] = []
        self.profiler: Any = None

    def __enter__(self) -> "Operations":
        if self.device.type == "cuda":
            self.profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True)
            self.profiler.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self.profiler is not None:
            torch.cuda.synchronize(self.device)
            self.profiler.__exit__(*raised)
            self._attribute(self.profiler.events())
            self.profiler = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, found = kwargs or {}, multiplied(func)
        start = time.perf_counter()
        if self.profiler is None:
            out = func(*args, **kwargs)
        else:
            with record_function(f"{MARK}{len(self.calls)}"):
                out = func(*args, **kwargs)
        ms = (time.perf_counter() - start) * 1e3
        name = str(func.overloadpacket).removeprefix("aten.")
        call = Operation(name, self._format(found, args, out), found is not None)
        call.flops, call.moved = operation_flops(func, args, kwargs, out), moved(func, name, args, kwargs, out)
        call.ms = ms if self.profiler is None else 0.0
        self.calls.append(call)
        return out

    def _format(self, found: tuple | None, args: tuple, out: Any) -> str | None:
        """Of the operands that are multiplied, else of the result."""
        if found is None:
            dtype = next((leaf.dtype for leaf in tree_leaves(out if out is not None else args) if isinstance(leaf, Tensor)), None)
            return NAMES.get(dtype)
        if (part := inside()) is not None:
            return part[1]
        stored = {args[i].dtype for i in found[1] if i < len(args) and isinstance(args[i], Tensor)}
        if stored == {torch.float32}:
            return "tf32" if self.mode.formats[found[0]] == "tf32" else "fp32"
        return next((NAMES.get(dtype) for dtype in stored if dtype != torch.float32), None)

    def _attribute(self, events: Any) -> None:
        """Give every call the kernels that ran within its mark; of a product's format and Tensor Cores they know best."""
        for event in events:
            if event.name.startswith(MARK):
                call = self.calls[int(event.name.removeprefix(MARK))]
                for name, ms in _kernels_below(event):
                    call.kernels.add(name)
                    call.ms += ms
        for call in self.calls:
            seen = [found for name in call.kernels if (found := classify(name)) is not None] if call.multiplies else []
            if seen:
                call.tensor_cores = all(cores for _, cores in seen)
                call.fmt = next((fmt for fmt, _ in seen if fmt is not None), call.fmt)

    @property
    def rows(self) -> list[Operation]:
        """Calls of one operation in one format together. Those that took no time on the device (views) are left out."""
        found: dict[tuple, Operation] = {}
        for call in self.calls:
            if call.ms == 0 or (self.device.type != "cuda" and not call.moved):
                continue
            least, bound = self.limits.least_s(call.flops, call.moved, call.fmt)
            row = found.setdefault(
                (call.name, call.fmt, call.tensor_cores, bound), Operation(*_key(call), calls=0, least_ms=0.0, bound=bound)
            )
            row.calls, row.ms, row.flops, row.moved = row.calls + 1, row.ms + call.ms, row.flops + call.flops, row.moved + call.moved
            row.least_ms = row.least_ms + least * 1e3 if least is not None and row.least_ms is not None else None
            row.kernels |= call.kernels
        return sorted(found.values(), key=lambda row: -row.ms)

    @property
    def layers(self) -> list[Operation]:
        """Those whose floating point operations are counted; calls of one operation on one shape together, in the order of the step."""
        found: dict[tuple, Operation] = {}
        for call in self.calls:
            if call.flops and call.ms:
                row = found.setdefault((call.name, call.fmt, call.flops, call.moved), Operation(*_key(call), calls=0))
                row.calls, row.ms, row.flops, row.moved = row.calls + 1, row.ms + call.ms, row.flops + call.flops, row.moved + call.moved
        return list(found.values())


def _key(call: Operation) -> tuple:
    return call.name, call.fmt, call.multiplies, call.tensor_cores


def of_kernels(kernels: dict[str, tuple[int, float]], steps: int) -> list[Operation]:
    """Rows of a compiled step, whose fused kernels tell no shapes: name, format where it shows, time. kernels: as trace.Busy has them."""
    rows = []
    for name, (times, ms) in kernels.items():
        fmt, cores = classify(name) or (None, None)
        rows.append(Operation(name, fmt, cores is not None, cores, calls=max(1, round(times / steps)), ms=ms / steps, kernels={name}))
    return rows


def moved(func: Any, name: str, args: tuple, kwargs: dict, out: Any) -> int:
    """Bytes: operands read once, results written once; 0 for a view."""
    if func.is_view:
        return 0
    results = {id(leaf): leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)}
    written = sum(_bytes(leaf) for leaf in results.values())
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    changed = [value for argument, value in zip(func._schema.arguments, args, strict=False) if argument.is_write]
    written += sum(_bytes(leaf) for leaf in tree_leaves(changed) if isinstance(leaf, Tensor) and id(leaf) not in results)
    if name in OVERWRITES:
        given = given[1:]
    elif name in LOOKS_UP and given:
        return min(_bytes(given[0]), written) + sum(map(_bytes, given[1:])) + written
    return sum(map(_bytes, given)) + written


def _bytes(tensor: Tensor) -> int:
    """An expanded tensor lies in memory once."""
    if any(stride == 0 for stride in tensor.stride()):
        return prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride) * tensor.itemsize
    return tensor.numel() * tensor.itemsize


def _kernels_below(event: Any) -> list[tuple[str, float]]:
    """(name, milliseconds) of the kernels of an event and its children, without marks' own shadows on the device's time line."""
    found = [(kernel.name, kernel.duration / 1e3) for kernel in event.kernels if not kernel.name.startswith(MARK)]
    for child in event.cpu_children:
        found += _kernels_below(child)
    return found
