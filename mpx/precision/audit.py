"""Audit one training step: compare the format of each operation that multiplies matrices with the format that
the mode promises.

The formats of operands are visible as PyTorch dispatches an operation. Only its kernels show whether FP32
operands multiply in FP32 or TF32, and whether on Tensor Cores.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from mpx.precision.formats import STORED
from mpx.precision.kernels import classify, sums_in_fp16
from mpx.precision.modes import Mode
from mpx.precision.ops import KnowsUpdates, inside, multiplied
from mpx.private.torch_dispatch import tree_leaves
from mpx.system.printing import how_many

MARK = "mpx.call"
WIDTHS = ("fp8_e5m2", "fp8_e4m3", "int8", "fp16", "bf16", "tf32", "fp32", "fp64")  # from narrow to wide
RESULTS = {"tf32": "fp32", "fp8_e4m3": "bf16"}  # formats of results, where they differ from the operands'


@dataclass
class Call:
    name: str  # ATen's, without "aten."
    kind: str  # matmul, conv, rnn, bmm or attention
    operands: tuple[torch.dtype, ...]  # of the tensors that are multiplied
    result: torch.dtype | None  # of the first tensor that is returned, or else given
    with_vector: bool  # a product of matrices, of which one has a single row or column
    part_of: tuple[str, str] | None  # (kind, format) of the larger operation that this one is a step of
    flops: int  # floating point operations
    kernels: list[str] = field(default_factory=list)

    def format(self, mode: Mode) -> str | None:
        """The format in which it multiplies, by its operands: that of the widest. None where no Format
        describes them, or none is known.
        """
        if not self.operands or not STORED.keys() >= set(self.operands):
            return None
        if self.part_of is not None:
            return self.part_of[1]
        widest = max((STORED[dtype] for dtype in self.operands), key=WIDTHS.index)
        return "tf32" if widest == "fp32" and mode.formats[self.kind] == "tf32" else widest

    @property
    def kernel_format(self) -> str | None:
        """The format in which it multiplies, by its kernels: the widest. None where they do not tell."""
        return max((fmt for fmt, _ in self._products() if fmt is not None), key=WIDTHS.index, default=None)

    @property
    def tensor_cores(self) -> bool | None:
        """Whether all its products run on Tensor Cores. None where no kernel tells."""
        seen = self._products()
        return all(on_cores for _, on_cores in seen) if seen else None

    @property
    def accumulator(self) -> str:
        """The format in which products are summed."""
        return "fp16" if any(map(sums_in_fp16, self.kernels)) else "fp32"

    def _products(self) -> list[tuple[str | None, bool]]:
        """(format, whether on Tensor Cores) of each kernel that is known to multiply."""
        return [product for name in self.kernels if (product := classify(name)) is not None]


@dataclass
class Operation:
    """Equal calls: one row of the audit. flops: of all calls together."""

    kind: str  # matmul, linear, conv, rnn, bmm or attention
    name: str  # ATen's
    inputs: str  # formats of the operands, as stored
    output: str
    fmt: str  # in which it multiplied
    tensor_cores: bool | None  # None: unknown
    accumulator: str
    with_vector: bool
    calls: int = 0
    flops: int = 0
    kernels: set[str] = field(default_factory=set)

    def keeps(self, mode: Mode) -> bool:
        """Whether it multiplied in the format that the mode promises. cuBLAS has no TF32 for products with a
        vector, which memory limits: FP32 keeps TF32's promise there.
        """
        promised = mode.formats[self.kind]
        return self.fmt == promised or (self.with_vector and (promised, self.fmt) == ("tf32", "fp32"))


class Audit(KnowsUpdates):
    """Enter it around one training step; afterwards `calls` has the products in their order. FP32 operands
    count as TF32 if the mode multiplies them in TF32. A mode promises nothing of the optimizer's own
    products, which are left out.

    flops_of: (operation, arguments, keyword arguments, result) -> floating point operations. kernels_of: a
    CUDA device whose kernels are recorded with torch.profiler.
    """

    def __init__(
        self,
        mode: Mode,
        *,
        emulate: bool,
        flops_of: Callable[..., int],
        kernels_of: torch.device | None = None,
    ):
        super().__init__()
        self.mode, self.emulate = mode, emulate
        self.calls: list[Call] = []
        self._flops_of, self._device = flops_of, kernels_of
        self._profiler: Any = None

    def __enter__(self) -> Self:
        if self._device is not None:
            self._profiler = profile(
                activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True
            )
            self._profiler.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self._profiler is not None:
            torch.cuda.synchronize(self._device)
            self._profiler.__exit__(*raised)
            self._attribute(self._profiler.events())
            self._profiler = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, product = kwargs or {}, multiplied(func)
        if product is None or self.updating:
            return func(*args, **kwargs)
        kind, positions = product
        with nullcontext() if self._profiler is None else record_function(f"{MARK}{len(self.calls)}"):
            out = func(*args, **kwargs)
        operands = [args[i] for i in positions if i < len(args) and isinstance(args[i], Tensor)]
        vector = kind in ("matmul", "linear", "bmm") and any(
            1 in operand.shape[-2:] or operand.dim() == 1 for operand in operands
        )
        result = next(
            (
                leaf.dtype
                for leaf in tree_leaves(out if out is not None else args)
                if isinstance(leaf, Tensor)
            ),
            None,
        )
        name = str(func.overloadpacket).removeprefix("aten.")
        dtypes = tuple(operand.dtype for operand in operands)
        flops = self._flops_of(func, args, kwargs, out)
        self.calls.append(Call(name, kind, dtypes, result, vector, inside(), flops))
        return out

    def _attribute(self, events: Iterable[Any]) -> None:
        """Give each call the kernels that ran within its mark."""
        for event in events:
            number = int(event.name.removeprefix(MARK)) if event.name.startswith(MARK) else len(self.calls)
            if number < len(self.calls):  # an operation that failed has a mark and is no call
                self.calls[number].kernels += _kernels_below(event)

    def operations(self) -> list[Operation]:
        """In the order of their first calls, without integer and complex products, to which no precision mode
        applies.
        """
        found: dict[tuple, Operation] = {}
        for call in self.calls:
            fmt = call.format(self.mode)
            if fmt is not None and call.result in STORED:
                about = self._about(call, fmt, STORED[call.result])
                row = found.setdefault(about, Operation(*about))
                row.calls += 1
                row.flops += call.flops
                row.kernels.update(call.kernels)
        return list(found.values())

    def _about(self, call: Call, fmt: str, output: str) -> tuple:
        """In which equal calls agree: the first fields of their Operation."""
        kind, inputs = call.kind, " × ".join(sorted({STORED[dtype] for dtype in call.operands}))
        if call.part_of is not None:
            kind = call.part_of[0]
            if self.emulate:  # what the FP32 tensors stand for
                inputs, output = fmt, RESULTS.get(fmt, fmt)
        if not self.emulate:
            fmt = call.kernel_format or fmt
        return kind, call.name, inputs, output, fmt, call.tensor_cores, call.accumulator, call.with_vector

    def rows(self) -> list[Operation]:
        """The operations, those with the most FLOPs first."""
        return sorted(self.operations(), key=lambda row: -row.flops)

    def flops_by_format(self) -> dict[str, int]:
        flops: dict[str, int] = defaultdict(int)
        for row in self.rows():
            flops[row.fmt] += row.flops
        return flops

    def observed(self) -> dict[str, dict[str, int]]:
        """{kind: {format: calls}}"""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.operations():
            counts[row.kind][row.fmt] += row.calls
        return {kind: dict(calls) for kind, calls in counts.items()}

    def shares(self, mode: Mode) -> dict[str, float]:
        """{kind: the share of its FLOPs that keeps the promise of `mode`}, of the kinds that have FLOPs"""
        kept: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for row in self.rows():
            total[row.kind] += row.flops
            kept[row.kind] += row.flops if row.keeps(mode) else 0
        return {kind: kept[kind] / flops for kind, flops in total.items() if flops}

    def as_promised(self) -> dict[str, float]:
        """The shares of this audit's own mode. A kind without FLOPs breaks no promise."""
        return dict.fromkeys(self.observed(), 1.0) | self.shares(self.mode)

    def record(self) -> dict[str, Any]:
        """For result.json."""
        rows = self.rows()
        return {
            "as_promised": self.as_promised(),
            "kernels_seen": any(row.tensor_cores is not None for row in rows),
            "operations": [vars(row) | {"kernels": sorted(row.kernels)} for row in rows],
        }


def _kernels_below(event: Any) -> list[str]:
    """The kernels of an event and its children. A mark appears on the device's time line too, and is left
    out.
    """
    kernels = [kernel.name for kernel in event.kernels if not kernel.name.startswith(MARK)]
    for child in event.cpu_children:
        kernels += _kernels_below(child)
    return kernels


def complaint(audit: Audit) -> str | None:
    """One line about the operation with the most FLOPs in another format than promised, with a remedy; None
    if all keep the promise.
    """
    rows = [row for row in audit.rows() if not row.keeps(audit.mode)]
    if not rows:
        return None
    worst, shares = rows[0], audit.as_promised()
    kernel = f" (kernel {min(worst.kernels)[:80]})" if worst.kernels else ""
    kept = ", ".join(f"{share:.1%} of {kind}" for kind, share in shares.items() if share < 1)
    ran = (
        f"{how_many(worst.calls, 'call')} of {worst.name} ran in {worst.fmt}{kernel}; as promised: "
        f"{kept} FLOPs"
    )
    return (
        f"precision={audit.mode.name} promises {worst.kind} in {audit.mode.formats[worst.kind]}, but {ran}. "
        "Use precision.strict=false to train all the same, or another precision=."
    )
