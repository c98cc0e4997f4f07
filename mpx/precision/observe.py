"""Which format each matmul, conv and rnn of a step really read: {kind: {format: calls}}."""

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mpx.precision.modes import Mode
from mpx.precision.ops import multiplied

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}


class Observe(TorchDispatchMode):
    """Counts calls by the dtype of their operands. FP32 operands count as TF32, or as the emulated format, where that is switched on."""

    def __init__(self, mode: Mode, *, emulate: bool):
        super().__init__()
        self.calls: dict[str, Counter[str]] = defaultdict(Counter)
        self.fp32_is = mode.formats if emulate or mode.matmul == "tf32" else dict.fromkeys(mode.formats, "fp32")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if (found := multiplied(func)) is not None:
            kind, operands = found
            dtypes = {args[i].dtype for i in operands if i < len(args) and isinstance(args[i], Tensor)}
            for dtype in dtypes:
                self.calls[kind][NAMES.get(dtype, self.fp32_is[kind])] += 1
        return func(*args, **(kwargs or {}))

    def counts(self) -> dict[str, dict[str, int]]:
        return {kind: dict(calls) for kind, calls in self.calls.items()}
