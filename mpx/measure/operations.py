"""The operations of one training step: how long each takes, in which format it computes, and how much it computes and moves.

Floating point operations are counted from shapes. Bytes are the least that must move: each operand is read once, each result written once.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from mpx.measure.flops import operation_flops
from mpx.measure.limits import Limits
from mpx.precision.formats import STORED
from mpx.precision.kernels import classify
from mpx.precision.modes import Mode
from mpx.precision.ops import multiplied
from mpx.precision.recorder import Call, OperationRecorder
from mpx.private.torch_dispatch import tree_leaves, written_arguments

FORMAT_OF_DTYPE = STORED | {torch.int8: "int8", torch.int64: "int64"}
LOOKS_UP = ("embedding", "index", "index_select", "gather")  # read as much of the first operand as they return
MOVES_NOTHING = ("_unsafe_view", "as_strided_", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
ALIGNED = 16  # bytes from row to row of a matrix, or a multiple, suit Tensor Cores (NVIDIA, Matrix Multiplication Background User's Guide)
BY_ROWS, BY_COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
SPARSE = {  # layout of a tensor without strides -> the methods that return what it stores
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), BY_ROWS),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), BY_COLUMNS),
}
OVERWRITES = ("copy_", "fill_", "zero_")  # write the first operand without reading it


@dataclass
class Operation:
    """One call, or the sum of equal calls. ms: on the device, or on a CPU."""

    name: str  # ATen's without "aten.", or a kernel's
    fmt: str | None  # in which it multiplies, or computes
    multiplies: bool  # matrices: a product, a convolution, an attention or an RNN
    tensor_cores: bool | None = None  # None: unknown, or nothing that could use them
    calls: int = 1
    ms: float = 0.0
    flops: int = 0
    moved: int = 0  # bytes
    least_ms: float | None = None  # that the device's limits allow; None: unknown
    bound: str | None = None  # the limit: "arithmetic" or "memory"
    misaligned: int | None = None  # as Call's
    kernels: set[str] = field(default_factory=set)

    @property
    def roofline(self) -> float | None:
        """The share of the device's limit that is reached."""
        return self.least_ms / self.ms if self.least_ms is not None and self.ms else None

    def add(self, other: "Operation") -> None:
        self.calls += other.calls
        self.ms += other.ms
        self.flops += other.flops
        self.moved += other.moved
        self.kernels |= other.kernels
        self.least_ms = None if self.least_ms is None or other.least_ms is None else self.least_ms + other.least_ms


class Operations(OperationRecorder):
    """Enter it around one training step; afterwards `rows` and `layers` have what ran. On CUDA it profiles the step as well."""

    def __init__(self, mode: Mode, device: torch.device, limits: Limits):
        super().__init__(_sizes, kernels_of=device if device.type == "cuda" else None)
        self.mode, self.device, self.limits = mode, device, limits

    @property
    def rows(self) -> list[Operation]:
        """One row for all calls of an operation in one format, the longest first, without calls that took no time (views)."""
        found: dict[tuple, Operation] = {}
        for call in map(self._read, self.calls):
            if call.ms and (self.device.type == "cuda" or call.moved):
                _collect(found, (call.name, call.fmt, call.tensor_cores, call.bound), call)
        return sorted(found.values(), key=lambda row: -row.ms)

    @property
    def layers(self) -> list[Operation]:
        """One row for all calls of an operation on one shape, in the order of the step. Calls without counted FLOPs are left out."""
        found: dict[tuple, Operation] = {}
        for call in map(self._read, self.calls):
            if call.flops and call.ms:
                _collect(found, (call.name, call.fmt, call.flops, call.moved, call.misaligned), call)
        return list(found.values())

    def _read(self, call: Call) -> Operation:
        fmt = call.kernel_format or call.format(self.mode) or FORMAT_OF_DTYPE.get(call.result)
        least_s, bound = self.limits.least_s(call.flops, call.moved, fmt)
        return Operation(
            call.name,
            fmt,
            call.kind is not None,
            call.tensor_cores,
            ms=call.ms,
            flops=call.flops,
            moved=call.moved,
            least_ms=None if least_s is None else least_s * 1e3,
            bound=bound,
            misaligned=call.misaligned,
            kernels={name for name, _ in call.kernels},
        )


def _collect(found: dict[tuple, Operation], key: tuple, call: Operation) -> None:
    if key in found:
        found[key].add(call)
    else:
        found[key] = call


def of_kernels(kernels: dict[str, tuple[int, float]], steps: int) -> list[Operation]:
    """Rows of a compiled step, whose fused kernels show no shapes: name, format if known, time. kernels: as in trace.Busy."""
    rows = []
    for name, (times, ms) in kernels.items():
        fmt, cores = classify(name) or (None, None)
        rows.append(Operation(name, fmt, cores is not None, cores, calls=max(1, round(times / steps)), ms=ms / steps, kernels={name}))
    return rows


def _sizes(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> tuple[int, int, int | None]:
    return operation_flops(func, args, kwargs, out), moved(func, args, kwargs, out), misaligned(func, args, out)


def misaligned(func: Any, args: tuple, out: Any) -> int | None:
    """Of the matrices of a 16-bit product, the most numbers from row to row that are no multiple of ALIGNED bytes. None: there are none."""
    kind, positions = multiplied(func) or (None, ())
    if kind not in ("matmul", "bmm"):
        return None
    tensors = [*args[positions[0] : positions[-1] + 1], out]
    if any(_without_strides(tensor) or tensor.dim() < 2 or 1 in tensor.shape[-2:] for tensor in tensors):
        return None  # a product with a vector leaves Tensor Cores idle
    strides = [tensor.stride()[-2:] for tensor in tensors if tensor.itemsize == 2]
    return max((max(steps) for steps in strides if min(steps) and 2 * max(steps) % ALIGNED), default=None)  # 0: an expanded row


def moved(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> int:
    """Bytes that must move: operands are read once, results are written once. 0 for a view and for uninitialised memory."""
    name = str(func.overloadpacket).removeprefix("aten.")
    if func.is_view or name in MOVES_NOTHING:
        return 0
    results = {id(leaf): leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)}
    written = sum(_bytes(leaf) for leaf in results.values())
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    changed = tree_leaves(written_arguments(func, args))
    if name.startswith("_fused_") and kwargs.get("grad_scale") is None:
        changed = [leaf for leaf in changed if all(leaf is not gradient for gradient in args[1])]  # which it would write unscaled
    written += sum(_bytes(leaf) for leaf in changed if isinstance(leaf, Tensor) and id(leaf) not in results)
    if name in OVERWRITES:
        given = given[1:]
    elif name in LOOKS_UP and given:
        return min(_bytes(given[0]), written) + sum(map(_bytes, given[1:])) + written
    return sum(map(_bytes, given)) + written


def _bytes(tensor: Tensor) -> int:
    """An expanded tensor occupies its memory once."""
    if tensor.layout in SPARSE:
        return sum(_bytes(getattr(tensor, name)()) for name in SPARSE[tensor.layout])
    if _without_strides(tensor):
        return tensor.numel() * tensor.itemsize
    if any(stride == 0 for stride in tensor.stride()):
        return prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride) * tensor.itemsize
    return tensor.numel() * tensor.itemsize


def _without_strides(tensor: Tensor) -> bool:
    return tensor.layout in SPARSE or tensor.is_nested
