"""Train as if the device had a number format that it lacks: cast where a GPU's autocast casts, multiply in FP32, store in the format.

In FP16 and BF16 tensors are what they are on a GPU: of 16 bits wherever autocast makes them so, forward and backward. What multiplies
them (matrix products, convolutions, recurrent layers, attention) is computed in FP32 and stored in 16 bits, which Tensor Cores do too
and for which a CPU has no instructions. TF32 has no type of its own: the operands of FP32 products are rounded.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mpx.precision import fp8
from mpx.precision.attention import attention
from mpx.precision.autocast import Casts, announced, every_call_seen
from mpx.precision.lstm import lstm
from mpx.precision.ops import inside, multiplied, part_of
from mpx.precision.recurrent import gru_cell, gru_step, layers, lstm_cell, relu_step, tanh_step
from mpx.precision.rnn import RNNS
from mpx.precision.rounding import ROUND, truncated_to_tf32

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
HALVES = (torch.float16, torch.bfloat16)


class Emulate:
    """A context in which operations, forward and backward, give what they give on a GPU in `fmt`, with FP32 accumulation.

    fmt: fp16 and bf16 as under autocast. tf32: products, convolutions and RNNs of FP32 tensors round their operands. fp8: Linear layers
    as mpx.precision.fp8 has them, all else as bf16.
    Must be active in the backward pass as well; entering it around both is enough on every device.
    only_16_bit: without autocast, for models whose own weights and activations are FP16 or BF16; FP32 tensors are left alone.
    """

    def __init__(self, fmt: str, *, only_16_bit: bool = False):
        self.fmt, self.only_16_bit = fmt, only_16_bit
        self._stack = ExitStack()

    def __enter__(self) -> "Emulate":
        fmt = "bf16" if self.fmt == "fp8" else self.fmt
        casts = None if self.only_16_bit or fmt == "tf32" else Casts(DTYPES[fmt])
        self._stack.enter_context(_TF32() if fmt == "tf32" else _In16Bits(fmt))
        self._stack.enter_context(every_call_seen())
        self._stack.enter_context(_Functions(fmt, casts, fp8_linear=self.fmt == "fp8"))
        if casts is not None:
            self._stack.enter_context(announced())
            self._stack.callback(casts.forget)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


class _Functions(TorchFunctionMode):
    """Casts as autocast does, and computes what is one operation on a GPU as that operation does."""

    def __init__(self, fmt: str, casts: Casts | None, *, fp8_linear: bool):
        super().__init__()
        self.dtypes, self.casts = (torch.float32,) if fmt == "tf32" else HALVES, casts
        self.uncast = {linear: partial(fp8.linear, native=False)} if fp8_linear else {}
        self.whole = {torch._VF.lstm: partial(lstm, fmt)}
        if fmt != "tf32":  # fused attention of FP32 operands has FP32's accuracy; other recurrent layers are their products
            steps = {torch._VF.gru: gru_step, torch._VF.rnn_tanh: tanh_step, torch._VF.rnn_relu: relu_step}
            self.whole |= {function: partial(layers, step, fmt) for function, step in steps.items()}
            self.whole |= {torch._VF.lstm_cell: partial(lstm_cell, fmt), torch._VF.gru_cell: partial(gru_cell, fmt)}
            self.whole[scaled_dot_product_attention] = partial(attention, fmt)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if inside() is not None:
            return func(*args, **kwargs)
        if func in self.uncast:
            return self.uncast[func](*args, **kwargs)
        if self.casts is not None:
            args, kwargs = self.casts(func, args, kwargs)
        if func in self.whole and self._fits(func, args, kwargs):
            return self.whole[func](*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            everywhere = "Low precision dtypes not supported" in str(error)  # on a GPU too
            if everywhere or func.__name__.endswith("_") or "out" in kwargs or _half_among(args) is None:
                raise
            return _in_fp32(func, args, kwargs)  # a CPU has few operations, such as avg_pool3d, in FP32 alone

    def _fits(self, func: Any, args: tuple, kwargs: dict) -> bool:
        """Operands of the format; of recurrent layers no projections, and no packed sequences, which have batch sizes before the state."""
        first = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        if first.dtype not in self.dtypes or func not in RNNS:
            return first.dtype in self.dtypes
        return isinstance(args[3], bool) and len(args[2]) == (4 if args[3] else 2) * args[4] * (2 if args[7] else 1)


class _In16Bits(TorchDispatchMode):
    """Computes each single operation that multiplies 16-bit tensors in FP32."""

    def __init__(self, fmt: str):
        super().__init__()
        self.fmt = fmt

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, found = kwargs or {}, multiplied(func)
        if found is None and inside() is None and torch.is_inference_mode_enabled():
            return _in_parts(self, func, args, kwargs)
        if found is None or inside() is not None or _half_among(args) is None:
            return func(*args, **kwargs)
        with part_of(found[0], self.fmt):
            return _in_fp32(func, args, kwargs)


def _half_among(args: tuple) -> torch.dtype | None:
    """The type of the first 16-bit operand; an RNN's weights come as a list."""
    return next((leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.dtype in HALVES), None)


def _in_fp32(func: Any, args: tuple, kwargs: dict) -> Any:
    """func(*args, **kwargs) from FP32 copies of 16-bit operands; results are stored in the operands' type."""
    half = _half_among(args)
    args, kwargs = tree_map(_upcast, (args, kwargs))
    if func is torch.ops.aten.convolution.default and args[2] is not None:  # cuDNN's result is rounded before the bias is added to it
        out = func(*args[:2], None, *args[3:], **kwargs).to(half)
        return (out.float() + args[2].reshape(-1, *[1] * (out.dim() - 2))).to(half)
    return tree_map(lambda value: value.to(half) if _is_fp32(value) else value, func(*args, **kwargs))


def _upcast(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def _is_fp32(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _in_parts(mode: TorchDispatchMode, func: Any, args: tuple, kwargs: dict) -> Any:
    """In inference mode operations come whole, a linear layer as aten.linear, and not as the products that they are made of."""
    with mode:
        out = func.decompose(*args, **kwargs)
    return func(*args, **kwargs) if out is NotImplemented else out


class _TF32(TorchDispatchMode):
    """Rounds the operands of each single operation that multiplies FP32 tensors; those of convolutions' weight gradients are truncated
    where Hopper's own kernel for them runs (seen on an H200: 64 channels and more on both sides, except 1×1 with stride 1, which is a
    plain matrix product)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, found = kwargs or {}, multiplied(func)
        if inside() is not None or (found is not None and found[0] == "attention"):
            return func(*args, **kwargs)
        if found is None:
            return _in_parts(self, func, args, kwargs) if torch.is_inference_mode_enabled() else func(*args, **kwargs)
        kind, operands = found
        rounded = [tree_map(_to_tf32, arg) if i in operands else arg for i, arg in enumerate(args)]
        with part_of(kind, "tf32"):
            if func is not torch.ops.aten.convolution_backward.default or not args[10][1] or not _truncates(args[2], args[4]):
                return func(*rounded, **kwargs)
            grad, x = (truncated_to_tf32(arg) if arg.dtype == torch.float32 else arg for arg in args[:2])
            _, weight_grad, _ = func(grad, x, *args[2:10], [False, True, False])
            input_grad, _, bias_grad = func(*rounded[:10], [args[10][0], False, args[10][2]])
            return input_grad, weight_grad, bias_grad


def _to_tf32(value: Any) -> Any:
    return ROUND["tf32"](value) if _is_fp32(value) else value


def _truncates(weight: Tensor, stride: list[int]) -> bool:
    return min(weight.shape[:2]) >= 64 and (weight[0, 0].numel() > 1 or max(stride) > 1)
