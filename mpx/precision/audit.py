"""Audit one training step: compare the format of each operation that multiplies matrices with the format that
the mode promises.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from mpx.precision.formats import STORED
from mpx.precision.modes import Mode
from mpx.precision.ops import KnowsUpdates
from mpx.precision.recorder import Call, OperationRecorder
from mpx.system.printing import how_many

RESULTS = {"tf32": "fp32", "fp8_e4m3": "bf16"}  # formats of results, where they differ from the operands'


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


class Audit(KnowsUpdates, OperationRecorder):
    """Enter it around one training step. FP32 operands count as TF32 if the mode multiplies them in TF32. A
    mode promises nothing of the optimizer's own products, which are left out.

    flops_of: (operation, arguments, keyword arguments, result) -> floating point operations. kernels_of: as
    in OperationRecorder.
    """

    def __init__(
        self,
        mode: Mode,
        *,
        emulate: bool,
        flops_of: Callable[..., int],
        kernels_of: torch.device | None = None,
    ):
        super().__init__(flops_of, kernels_of=kernels_of)
        self.mode, self.emulate = mode, emulate

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (
            func(*args, **(kwargs or {}))
            if self.updating
            else super().__torch_dispatch__(func, types, args, kwargs)
        )

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

    def broken(self) -> list[Operation]:
        """Operations in another format than the mode promises."""
        return [row for row in self.rows() if not row.keeps(self.mode)]

    def record(self) -> dict[str, Any]:
        """For result.json."""
        rows = self.rows()
        return {
            "as_promised": self.as_promised(),
            "kernels_seen": any(row.tensor_cores is not None for row in rows),
            "operations": [vars(row) | {"kernels": sorted(row.kernels)} for row in rows],
        }


def complaint(audit: Audit) -> str | None:
    """One line about the operation with the most FLOPs in another format than promised, with a remedy; None
    if all keep the promise.
    """
    rows = audit.broken()
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
