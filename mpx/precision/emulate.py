"""Train as if the device had a number format that it lacks: round what matmul, conv and rnn read and write, compute in FP32."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mpx.precision.ops import multiplied
from mpx.precision.rounding import ROUND


class Emulate(TorchDispatchMode):
    """Dispatch mode under which every matmul, conv and rnn, forward and backward, behaves as in `fmt` with FP32 accumulation.

    fp16 and bf16 round operands, bias and result, as autocast does. tf32 rounds the operands alone: its results stay FP32.
    Must be active in the backward pass as well; autograd on a CPU runs in the calling thread, so entering it around both is enough.
    """

    def __init__(self, fmt: str):
        super().__init__()
        self.round = ROUND[fmt]
        self.operands_only = fmt == "tf32"

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = multiplied(func)
        if found is None:
            return func(*args, **(kwargs or {}))
        _, operands = found
        args = tuple(self._rounded(arg) if not self.operands_only or i in operands else arg for i, arg in enumerate(args))
        out = func(*args, **(kwargs or {}))
        return out if self.operands_only else tree_map(self._rounded, out)

    def _rounded(self, value: Any) -> Any:
        return self.round(value) if isinstance(value, Tensor) and value.dtype == torch.float32 else value
