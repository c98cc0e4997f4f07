"""Linear layers in FP8: E4M3 for inputs and weights, E5M2 for gradients, with dynamic (current) per-tensor scaling.

Each tensor is scaled to the range of its format when it is cast. Weights, the sums of their gradients and optimizer state stay FP32,
activations BF16. Source: Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mpx.precision.formats import FORMATS
from mpx.precision.ops import Replacing, part_of
from mpx.precision.rounding import saturated
from mpx.private.torch_kernels import scaled_mm

FORWARD, BACKWARD = "fp8_e4m3", "fp8_e5m2"
TILE = 16  # the FP8 product takes multiples of it; other sizes are padded with zeros


class Float8Linear(Replacing):
    """Under this mode torch.nn.functional.linear is an FP8 product, forward and backward. It needs compute capability 8.9 or newer."""

    def __init__(self) -> None:
        super().__init__("linear", partial(linear, native=True))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, native: bool) -> Tensor:
    """torch.nn.functional.linear in FP8. input [..., K], weight [N, K], bias [N] -> [..., N] in BF16.

    native: the hardware multiplies FP8. Otherwise the same values are multiplied in FP32.
    """
    out = _Linear.apply(input.reshape(-1, input.shape[-1]), weight, native)
    if bias is not None:
        out = out + bias.to(out.dtype)
    return out.reshape(*input.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, native: bool) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x8, w8 = Scaled(x, FORWARD, native=native), Scaled(weight, FORWARD, native=native)
            ctx.x8, ctx.w8, ctx.native, ctx.dtypes = x8, w8, native, (x.dtype, weight.dtype)
            return _product(x8, w8.t(), native=native, fast=True)  # [M, N]

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        with torch.autocast(grad.device.type, enabled=False):
            g8 = Scaled(grad, BACKWARD, native=ctx.native)
            dx = _product(g8, ctx.w8, native=ctx.native) if ctx.needs_input_grad[0] else None
            dw = _product(g8.t(), ctx.x8, native=ctx.native) if ctx.needs_input_grad[1] else None
        return dx if dx is None else dx.to(ctx.dtypes[0]), dw if dw is None else dw.to(ctx.dtypes[1]), None


class Scaled:
    """A matrix rounded to FP8, and the FP32 factor that undoes its scaling: value = data * inverse.

    native: data is an FP8 tensor; otherwise it has the same numbers in FP32. An infinite or NaN value makes the whole matrix NaN.
    """

    def __init__(self, x: Tensor, fmt: str, *, native: bool):
        largest = x.detach().abs().amax().float()
        largest = torch.where(torch.isfinite(largest), largest, torch.nan)
        scale = torch.where(largest == 0, 1.0, FORMATS[fmt].largest / largest).clamp(max=torch.finfo(torch.float32).max)
        self.data = saturated(x.float() * scale, fmt).to(FORMATS[fmt].dtype)
        self.inverse, self.fmt = scale.reciprocal(), fmt
        if not native:
            self.data = decoded(self.data)

    def t(self) -> "Scaled":
        other = object.__new__(Scaled)
        other.data, other.inverse, other.fmt = self.data.t(), self.inverse, self.fmt
        return other


def decoded(x: Tensor) -> Tensor:
    """FP8 numbers in FP32, except NaN. Shifted bits of FP8 numbers are FP16 numbers, which is four times faster than .float() on a CPU."""
    bits = x.view(torch.uint8).to(torch.int16)
    if x.dtype == torch.float8_e5m2:
        return (bits << 8).view(torch.float16).float()
    bits = (bits & 0x7F) << 7 | (bits & 0x80) << 8
    return bits.view(torch.float16).float().mul_(256)  # the exponent's bias is 7 in E4M3, 15 in FP16


def _product(a: Scaled, b: Scaled, *, native: bool, fast: bool = False) -> Tensor:
    """[M, K] @ [K, N] in BF16. fast: the hardware may sum in fewer bits, as is usual in the forward pass."""
    with part_of("linear", BACKWARD if BACKWARD in (a.fmt, b.fmt) else FORWARD):
        if not native:
            return (a.data @ b.data).mul_(a.inverse * b.inverse).bfloat16()
        left, right = _padded(a.data).contiguous(), _padded(b.data).t().contiguous().t()  # row-major, column-major
        out = scaled_mm(left, right, a.inverse, b.inverse, fast=fast)
        return out[: a.data.shape[0], : b.data.shape[1]]


def _padded(x: Tensor) -> Tensor:
    rows, columns = (-size % TILE for size in x.shape)
    if not rows and not columns:
        return x
    bigger = x.new_zeros(x.shape[0] + rows, x.shape[1] + columns)
    bigger[: x.shape[0], : x.shape[1]] = x
    return bigger
