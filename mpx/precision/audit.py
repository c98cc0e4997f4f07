"""What really ran: the format of every operation of one step that multiplies matrices, and on CUDA the kernels that did it.

The formats of operands are seen as PyTorch dispatches the operations; whether FP32 operands were multiplied in FP32 or TF32, and on Tensor
Cores or not, only the kernels can tell.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpx.precision.formats import STORED
from mpx.precision.kernels import classify, sums_in_fp16
from mpx.precision.modes import Mode
from mpx.precision.ops import inside, multiplied

MARK = "mpx.audit"


@dataclass
class Operation:
    """Calls that look the same: one row of the audit. flops: of all calls together."""

    kind: str  # matmul, conv, rnn, bmm or attention
    name: str  # ATen's
    inputs: str  # formats of the operands, as stored
    output: str
    fmt: str  # in which it multiplied
    tensor_cores: bool | None = None  # None: not seen
    accumulator: str = "fp32"
    calls: int = 0
    flops: int = 0
    kernels: set[str] = field(default_factory=set)


class Audit(TorchDispatchMode):
    """Enter it around one training step. FP32 operands count as TF32 where that is switched on.

    flops_of: (operation, arguments, result) -> its floating point operations.
    look_at_kernels: profile the step as well (CUDA only).
    """

    def __init__(self, mode: Mode, *, emulate: bool, flops_of: Callable[..., int], look_at_kernels: bool = False):
        super().__init__()
        self.mode, self.emulate, self.flops_of = mode, emulate, flops_of
        self.calls: list[Operation] = []
        self.profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) if look_at_kernels else None
        self.saw_kernels = False

    def __enter__(self) -> "Audit":
        if self.profiler is not None:
            self.profiler.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if self.profiler is not None:
            torch.cuda.synchronize()
            self.profiler.__exit__(*raised)
            self._attribute(self.profiler.events())
            self.profiler = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, found = kwargs or {}, multiplied(func)
        stored = [args[i].dtype for i in found[1] if i < len(args) and isinstance(args[i], Tensor)] if found else []
        if found is None or not set(stored) <= STORED.keys():  # integer and complex products are no matter of precision
            return func(*args, **kwargs)
        if self.profiler is None:
            out = func(*args, **kwargs)
        else:
            with record_function(f"{MARK}{len(self.calls)}"):
                out = func(*args, **kwargs)
        kind, part = found[0], inside()
        fmt = part[1] if part is not None else max((self._format(kind, dtype) for dtype in stored), key=_WIDEST.index)
        result = next((leaf.dtype for leaf in tree_leaves(out) if isinstance(leaf, Tensor)), torch.float32)
        name = str(func.overloadpacket).removeprefix("aten.")
        inputs, output = " × ".join(sorted({STORED[dtype] for dtype in stored})), STORED[result]
        if self.emulate and part is not None:  # what the FP32 tensors stand for
            inputs, output = fmt, {"tf32": "fp32", "fp8_e4m3": "bf16", "fp8_e5m2": "bf16"}.get(fmt, fmt)
        flops = self.flops_of(func, args, kwargs, out)
        self.calls.append(Operation(part[0] if part else kind, name, inputs, output, fmt, calls=1, flops=flops))
        return out

    def _format(self, kind: str, dtype: torch.dtype) -> str:
        if dtype == torch.float32 and self.mode.matmul == "tf32":
            return self.mode.formats[kind]
        return STORED[dtype]

    def _attribute(self, events: Iterable[Any]) -> None:
        """Give every call the kernels that ran within its mark, and believe those more than the operands' dtypes."""
        for event in events:
            if event.name.startswith(MARK) and event.name != MARK:
                call = self.calls[int(event.name.removeprefix(MARK))]
                call.kernels |= _kernels_below(event)
        for call in self.calls:
            seen = [found for name in call.kernels if (found := classify(name)) is not None]
            self.saw_kernels |= bool(seen)
            formats = {fmt for fmt, _ in seen if fmt is not None}
            if formats and not self.emulate:
                call.fmt = max(formats, key=_WIDEST.index)
            if seen:
                call.tensor_cores = all(cores for _, cores in seen)
                call.accumulator = "fp16" if any(sums_in_fp16(name) for name in call.kernels) else "fp32"

    def rows(self) -> list[Operation]:
        """Equal calls together, those with the most FLOPs first."""
        found: dict[tuple, Operation] = {}
        for call in self.calls:
            key = (call.kind, call.name, call.inputs, call.output, call.fmt, call.tensor_cores, call.accumulator)
            row = found.setdefault(key, Operation(*key))
            row.calls += 1
            row.flops += call.flops
            row.kernels |= call.kernels
        return sorted(found.values(), key=lambda row: -row.flops)

    def observed(self) -> dict[str, dict[str, int]]:
        """{kind: {format: calls}}"""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for call in self.calls:
            counts[call.kind][call.fmt] += call.calls
        return {kind: dict(calls) for kind, calls in counts.items()}

    def as_promised(self) -> dict[str, float]:
        """{kind: share of its FLOPs in the formats that the mode promises}; 1.0 is as it should be."""
        kept, total = Counter(), Counter()
        for call in self.calls:
            total[call.kind] += call.flops
            kept[call.kind] += call.flops if call.fmt in self.mode.promises(call.kind) else 0
        return {kind: kept[kind] / flops if flops else 1.0 for kind, flops in total.items()}

    def broken(self) -> list[Operation]:
        """Operations in a format that the mode does not promise."""
        return [row for row in self.rows() if row.fmt not in self.mode.promises(row.kind)]

    def record(self) -> dict[str, Any]:
        """For result.json."""
        operations = [vars(row) | {"kernels": sorted(row.kernels)} for row in self.rows()]
        found = {"as_promised": self.as_promised(), "kernels_seen": self.saw_kernels, "operations": operations}
        return found if self.saw_kernels else found | {"kernels_seen_reason": "audit=true on a CUDA device looks at kernels"}


_WIDEST = ("fp8_e5m2", "fp8_e4m3", "int8", "fp16", "bf16", "tf32", "fp32", "fp64")  # of mixed formats the widest is reported


def _kernels_below(event: Any) -> set[str]:
    found = {kernel.name for kernel in event.kernels}
    for child in event.cpu_children:
        found |= _kernels_below(child)
    return found


def complaint(audit: Audit) -> str | None:
    """What ran in another format than promised and what can be done, in one line; None when all is as it should be."""
    rows = audit.broken()
    if not rows:
        return None
    worst, shares = rows[0], audit.as_promised()
    kernel = f" (kernel {min(worst.kernels)[:80]})" if worst.kernels else ""
    kept = ", ".join(f"{share:.1%} of {kind}" for kind, share in shares.items() if share < 1)
    promised = " or ".join(audit.mode.promises(worst.kind))
    found = f"{worst.calls} calls of {worst.name} ran in {worst.fmt}{kernel}; as promised: {kept} FLOPs"
    return (
        f"precision={audit.mode.name} promises {worst.kind} in {promised}, but {found}. "
        "Use precision.strict=false to train all the same, or another precision=."
    )
