"""Emulate a number format that the device lacks: cast as a GPU's autocast casts, multiply in FP32, store the
result in the format.

In FP16 and BF16, the same tensors have 16 bits as under autocast on a GPU, forward and backward. Operations
that multiply them (matrix products, convolutions, recurrent layers, attention) compute in FP32 and store 16
bits, as Tensor Cores do. TF32 has no dtype, so the operands of FP32 products are rounded instead.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from mpx.precision import fp8
from mpx.precision.attention import attention
from mpx.precision.autocast import Casts, announced
from mpx.precision.formats import FORMATS, HALVES, ROUND, stored_in, truncated_to_tf32, upcast
from mpx.precision.ops import inside, multiplied, part_of
from mpx.precision.recurrent import LAYERS, layers
from mpx.private.torch_dispatch import (
    TorchDispatchMode,
    every_call_seen,
    in_plain_backward,
    tree_leaves,
    tree_map,
)


class Emulate:
    """A context in which operations have the results of a GPU that computes in `fmt` with FP32 accumulation.
    Enter it around both passes.

    fmt: fp16 and bf16: as under autocast. tf32: products, convolutions and RNNs of FP32 tensors round their
    operands. fp8: linear layers as in mpx.precision.fp8, everything else as in bf16.
    linears: chooses the linear layers that are in FP8.
    autocast: False for models whose weights and activations are FP16 or BF16. Operations on FP32 tensors then
    do not change.
    """

    def __init__(self, fmt: str, *, autocast: bool = True, linears: fp8.Layers | None = None):
        self.fmt, self.autocast = fmt, autocast
        self.linears = (linears or fp8.Layers()) if fmt == "fp8" else None
        self._stack = ExitStack()

    def __enter__(self) -> "Emulate":
        fmt = "bf16" if self.fmt == "fp8" else self.fmt
        casts = Casts(FORMATS[fmt].dtype) if self.autocast and fmt != "tf32" else None
        self._stack.enter_context(_TF32() if fmt == "tf32" else _In16Bits(fmt))
        self._stack.enter_context(every_call_seen())
        self._stack.enter_context(_Functions(fmt, casts, self.linears))
        if casts is not None:
            self._stack.enter_context(announced())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)


class _Functions(TorchFunctionMode):
    """Casts as autocast does. Computes a function that is a single operation on a GPU with that operation's
    rounding.
    """

    def __init__(self, fmt: str, casts: Casts | None, linears: fp8.Layers | None):
        super().__init__()
        self.dtypes, self.casts, self.linears = (torch.float32,) if fmt == "tf32" else HALVES, casts, linears
        self.whole: dict[Any, Callable[..., Any]] = {
            function: partial(layers, step, fmt) for function, step in LAYERS.items()
        }
        if fmt != "tf32":  # in which fused attention is as accurate as FP32
            self.whole[scaled_dot_product_attention] = partial(attention, fmt)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if inside() is not None:
            return func(*args, **kwargs)
        if func is linear and self.linears is not None and self.linears.take(*args, **kwargs):
            return fp8.linear(*args, **kwargs, native=False)
        if self.casts is not None and not in_plain_backward():
            args, kwargs = self.casts(func, args, kwargs)
        if func in self.whole and self._fits(func, args, kwargs):
            return self.whole[func](*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            # that of an ATen operation has its overload, as add_.Tensor
            name = func.__name__.partition(".")[0]
            everywhere = "Low precision dtypes not supported" in str(error)  # on a GPU too
            half = _half_among(args)
            if everywhere or name.endswith("__") or "out" in kwargs or half is None:
                raise
            # avg_pool3d and sums of sparse gradients exist on a CPU in FP32 alone
            out = _in_fp32(func, half, args, kwargs)
            return args[0].copy_(out) if name.endswith("_") else out

    def _fits(self, func: Any, args: tuple, kwargs: dict) -> bool:
        """Whether the operands have the format. Recurrent layers with projections or packed sequences do not
        fit.

        A packed sequence has its batch sizes in place of the state.
        """
        first = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        if first.dtype not in self.dtypes or func not in LAYERS:
            return first.dtype in self.dtypes
        return isinstance(args[3], bool) and len(args[2]) == (4 if args[3] else 2) * args[4] * (
            2 if args[7] else 1
        )


class _In16Bits(TorchDispatchMode):
    """Computes operations that multiply 16-bit tensors in FP32, and stores the results in 16 bits."""

    def __init__(self, fmt: str):
        super().__init__()
        self.fmt = fmt

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, product, half = kwargs or {}, multiplied(func), _half_among(args)
        if product is None and inside() is None and torch.is_inference_mode_enabled():
            return _in_parts(self, func, args, kwargs)
        if product is None or inside() is not None or half is None:
            return func(*args, **kwargs)
        with part_of(product[0], self.fmt):
            return _in_fp32(func, half, args, kwargs)


def _half_among(args: tuple) -> torch.dtype | None:
    """The dtype of the first 16-bit operand, also in lists, such as the weights of an RNN."""
    return next(
        (leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.dtype in HALVES), None
    )


def _in_fp32(func: Any, half: torch.dtype, args: tuple, kwargs: dict) -> Any:
    """func(*args, **kwargs), computed from FP32 copies of 16-bit operands and stored in their dtype,
    `half`.
    """
    args, kwargs = tree_map(upcast, (args, kwargs))
    # cuDNN rounds its result before it adds the bias
    if func is torch.ops.aten.convolution.default and args[2] is not None:
        out = func(*args[:2], None, *args[3:], **kwargs).to(half)
        return (out.float() + args[2].reshape(-1, *[1] * (out.dim() - 2))).to(half)
    return tree_map(partial(stored_in, half), func(*args, **kwargs))


def _in_parts(mode: TorchDispatchMode, func: Any, args: tuple, kwargs: dict) -> Any:
    """Decompose an operation. In inference mode, a linear layer arrives as aten.linear and not as its
    product.
    """
    with mode:
        out = func.decompose(*args, **kwargs)
    return func(*args, **kwargs) if out is NotImplemented else out


class _TF32(TorchDispatchMode):
    """Rounds the operands of operations that multiply FP32 tensors.

    The operands of a convolution's weight gradient are truncated where Hopper's own kernel computes it
    (experiments/emulation).
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, product = kwargs or {}, multiplied(func)
        if inside() is not None or (product is not None and product[0] == "attention"):
            return func(*args, **kwargs)
        if product is None:
            return (
                _in_parts(self, func, args, kwargs)
                if torch.is_inference_mode_enabled()
                else func(*args, **kwargs)
            )
        kind, operands = product
        rounded = [tree_map(_to_tf32, arg) if i in operands else arg for i, arg in enumerate(args)]
        with part_of(kind, "tf32"):
            if func is torch.ops.aten.convolution_backward.default:
                return _convolution_backward(args, rounded)
            return func(*rounded, **kwargs)


def _convolution_backward(args: tuple, rounded: list) -> tuple[Tensor | None, ...]:
    """The gradients of a convolution. That of its bias is no product, but a sum of what arrives, which is not
    rounded.
    """
    func, grad, (of_input, of_weight, of_bias) = (
        torch.ops.aten.convolution_backward.default,
        args[0],
        args[10],
    )
    bias_grad = grad.sum((0, *range(2, grad.dim()))) if of_bias else None
    if not of_weight or not _truncates(args[2], args[4]):
        return *func(*rounded[:10], [of_input, of_weight, False])[:2], bias_grad
    grad, x = (truncated_to_tf32(arg) if arg.dtype == torch.float32 else arg for arg in args[:2])
    _, weight_grad, _ = func(grad, x, *args[2:10], [False, True, False])
    input_grad = func(*rounded[:10], [True, False, False])[0] if of_input else None
    return input_grad, weight_grad, bias_grad


def _to_tf32(value: Any) -> Any:
    return ROUND["tf32"](value) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def _truncates(weight: Tensor, stride: list[int]) -> bool:
    """Whether Hopper's own kernel runs: from 64 channels on both sides, except for 1×1 with stride 1, which
    is a matrix product.
    """
    return min(weight.shape[:2]) >= 64 and (weight[0, 0].numel() > 1 or max(stride) > 1)
