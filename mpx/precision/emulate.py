"""Train as if the device had a number format that it lacks: round what matmul, conv, rnn and attention read and write, compute in FP32."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mpx.precision.attention import RoundedAttention
from mpx.precision.fp8 import Float8Linear
from mpx.precision.lstm import lstm
from mpx.precision.ops import inside, multiplied, part_of
from mpx.precision.rounding import ROUND, truncated_to_tf32


class Emulate:
    """A context in which matmul, conv, rnn and attention, forward and backward, behave as in `fmt` with FP32 accumulation.

    fmt: fp16 and bf16 round operands, bias and result, as autocast does; FP16 and BF16 tensors are computed in FP32 and come back as what
    they were. tf32 rounds operands alone: its results stay FP32. fp8: Linear layers as mpx.precision.fp8 has them, all else as bf16.
    Must be active in the backward pass as well; entering it around both is enough on every device.
    only_16_bit: leave FP32 tensors alone, as a device does where a model's own weights and activations are FP16 or BF16.
    """

    def __init__(self, fmt: str, *, only_16_bit: bool = False):
        self.fmt, self.only_16_bit = fmt, only_16_bit
        self._stack = ExitStack()

    def __enter__(self) -> "Emulate":
        fmt = "bf16" if self.fmt == "fp8" else self.fmt
        self._stack.enter_context(_Rounding(fmt, self.only_16_bit))
        self._stack.enter_context(_FusedLSTM(fmt, self.only_16_bit))
        if fmt != "tf32":  # fused attention of FP32 operands has FP32's accuracy
            self._stack.enter_context(RoundedAttention(fmt, only_16_bit=self.only_16_bit))
        if self.fmt == "fp8":
            self._stack.enter_context(Float8Linear(native=False))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


class _Rounding(TorchDispatchMode):
    """Rounds around each single operation that multiplies."""

    def __init__(self, fmt: str, only_16_bit: bool):
        super().__init__()
        self.fmt, self.round, self.only_16_bit = fmt, ROUND[fmt], only_16_bit

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        found = multiplied(func)
        if inside() is not None:
            return func(*args, **kwargs)
        if found is None:
            return self._in_parts(func, args, kwargs) if torch.is_inference_mode_enabled() else func(*args, **kwargs)
        kind, operands = found
        if self.fmt == "tf32":
            return _tf32(func, kind, operands, args, kwargs)
        half = next((a.dtype for a in args if isinstance(a, Tensor) and a.dtype in (torch.float16, torch.bfloat16)), None)
        if half is None and self.only_16_bit:
            return func(*args, **kwargs)
        args = tree_map(self._rounded, args)  # an RNN's weights come as a list
        with part_of(kind, self.fmt):
            out = self._convolution(func, args, kwargs) if func is torch.ops.aten.convolution.default else func(*args, **kwargs)
        out = tree_map(self._rounded, out)
        return out if half is None else tree_map(lambda value: value.to(half) if isinstance(value, Tensor) else value, out)

    def _in_parts(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """In inference mode operations come whole, a linear layer as aten.linear, and not as the products that they are made of."""
        with self:
            out = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out

    def _convolution(self, func: Any, args: tuple, kwargs: dict) -> Tensor:
        """cuDNN's result is rounded before the bias is added to it."""
        out, bias = func(*args[:2], None, *args[3:], **kwargs), args[2]
        return out if bias is None else self.round(out) + bias.reshape(-1, *[1] * (out.dim() - 2))

    def _rounded(self, value: Any) -> Any:
        """FP32 values in the format, FP16 and BF16 ones upcast, everything else as it is."""
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return value
        return self.round(value) if value.dtype == torch.float32 else value.float()


def _tf32(func: Any, kind: str, operands: tuple[int, ...], args: tuple, kwargs: dict) -> Any:
    """Rounds operands; those of convolutions' weight gradients are truncated where Hopper's own kernel for them runs (seen on an H200:
    64 channels and more on both sides, except 1×1 with stride 1, which is a plain matrix product)."""
    if kind == "attention":
        return func(*args, **kwargs)
    rounded = [tree_map(_to_tf32, arg) if i in operands else arg for i, arg in enumerate(args)]
    with part_of(kind, "tf32"):
        if func is not torch.ops.aten.convolution_backward.default or not args[10][1] or not _truncates(args[2], args[4]):
            return func(*rounded, **kwargs)
        grad, x = (truncated_to_tf32(arg) if arg.dtype == torch.float32 else arg for arg in args[:2])
        _, weight_grad, _ = func(grad, x, *args[2:10], [False, True, False])
        input_grad, _, bias_grad = func(*rounded[:10], [args[10][0], False, args[10][2]])
        return input_grad, weight_grad, bias_grad


def _to_tf32(value: Any) -> Any:
    return ROUND["tf32"](value) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _truncates(weight: Tensor, stride: list[int]) -> bool:
    return min(weight.shape[:2]) >= 64 and (weight[0, 0].numel() > 1 or max(stride) > 1)


class _FusedLSTM(TorchFunctionMode):
    """Computes LSTMs as cuDNN does, which rounds in other places than the single operations would."""

    def __init__(self, fmt: str, only_16_bit: bool):
        super().__init__()
        self.fmt, self.only_16_bit = fmt, only_16_bit

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if (
            func is torch._VF.lstm
            and isinstance(args[1], tuple)
            and _plain(args)
            and not (self.only_16_bit and args[0].dtype == torch.float32)
        ):
            return lstm(self.fmt, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _plain(args: tuple) -> bool:
    """Whether an LSTM has no projections; those of packed sequences have their batch sizes where the state is expected."""
    per_layer = 4 if args[3] else 2
    return len(args[2]) == per_layer * args[4] * (2 if args[7] else 1)
