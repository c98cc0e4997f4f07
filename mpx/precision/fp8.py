"""Linear layers in FP8: the product of the forward pass and the gradient of the input in E4M3, the gradient
of the weight in BF16.

Each row of an operand has its own scale, so that torch.compile casts within the kernel that computes the row.
The gradient of the weight sums over tokens: in FP8 it would need both operands once more, turned and scaled
by column, which costs what it gains. Sources: the recipe rowwise_with_gw_hp of torchao.float8; Micikevicius
et al., FP8 Formats for Deep Learning, arXiv:2209.05433.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as plain

from mpx.precision.formats import FORMATS
from mpx.precision.ops import part_of
from mpx.private.torch_kernels import scaled_mm

E4M3 = FORMATS["fp8_e4m3"]
MULTIPLE = 16  # the kernel needs sizes that are multiples of it
# On both sides. Of 2,048 features all layers together are 1.19 times as fast as in BF16, of 1,024 0.95 to
# 1.05 (experiments/fp8).
MIN_FEATURES = 2048
MIN_ROWS = 4096  # estimated: with fewer, casting the weight costs what the products gain
TINY = 1e-30  # gives a row of zeros a scale
EXPONENT = 0x7F800000  # the exponent bits of FP32; masking a number with them gives a power of two


class Layers:
    """Decides which linear layers multiply in FP8, and records why others stay in BF16.

    every: all layers that the kernel supports, not only those that are known to be faster.
    """

    def __init__(self, *, every: bool = False):
        self.every = every
        self._reasons: dict[int, str | None] = {}  # by the id of the weight: why its layer stays in BF16

    def take(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
        """Whether the layer of this weight [N, K] multiplies inputs [..., K] in FP8."""
        reason = self._reason(input.numel() // max(1, input.shape[-1]), *weight.shape)
        if not torch.compiler.is_compiling() and isinstance(weight, nn.Parameter):
            self._reasons[id(weight)] = reason
        return reason is None

    def multiply(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """torch.nn.functional.linear, in FP8 for the layers that are taken. It needs compute capability
        8.9.
        """
        if self.take(input, weight):
            return linear(input, weight, bias, native=True)
        return plain(input, weight, bias)

    def _reason(self, rows: int, *sizes: int) -> str | None:
        if len(sizes) != 2 or any(size % MULTIPLE for size in sizes):
            return f"its sizes are not multiples of {MULTIPLE}"
        if self.every:
            return None
        if min(sizes) < MIN_FEATURES:
            return f"below {MIN_FEATURES:,} features FP8 gains little or loses"
        return f"no gain is known below {MIN_ROWS:,} rows" if rows < MIN_ROWS else None

    def record(self, model: nn.Module) -> list[dict[str, Any]]:
        """For result.json: one entry per linear layer that has been called."""
        entries = []
        for name, weight in model.named_parameters():
            if id(weight) in self._reasons:
                reason = self._reasons[id(weight)]
                layer = {
                    "name": name.removeprefix("model.").removesuffix(".weight"),
                    "shape": list(weight.shape),
                }
                entries.append(layer | {"format": E4M3.name if reason is None else "bf16", "reason": reason})
        return entries


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, native: bool) -> Tensor:
    """torch.nn.functional.linear in FP8. input [..., K], weight [N, K], bias [N] -> [..., N] in BF16.

    native: the hardware multiplies FP8. Otherwise the same values are multiplied in FP32.
    """
    with torch.autocast(input.device.type, enabled=False):
        out = _Linear.apply(input.reshape(-1, input.shape[-1]).bfloat16(), weight, bias, native)
    return out.reshape(*input.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, native: bool) -> Tensor:
        ctx.native, ctx.dtype = native, weight.dtype
        ctx.save_for_backward(x, *scaled(weight.t()))
        return _product(scaled(x), scaled(weight), bias, native)  # [M, N]

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        x, *turned = ctx.saved_tensors
        dx, dw, db, _ = ctx.needs_input_grad
        return (
            _product(scaled(grad), turned, None, ctx.native) if dx else None,
            (grad.t() @ x).to(ctx.dtype) if dw else None,
            grad.sum(0, dtype=ctx.dtype) if db else None,
            None,
        )


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [R, C] in E4M3, and the FP32 factors [R, 1] that undo the scaling of its rows.

    The largest value of a row comes near the largest of E4M3. Scales are powers of two, so that scaling
    rounds nothing. A row with an infinite value or NaN multiplies to NaN.
    """
    largest = x.detach().abs().amax(1, keepdim=True).float()
    scale = ((E4M3.largest / (largest + TINY)).view(torch.int32) & EXPONENT).view(torch.float32)
    return (x.float() * scale).to(E4M3.dtype), torch.where(largest.isfinite(), scale.reciprocal(), torch.nan)


def _product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], bias: Tensor | None, native: bool) -> Tensor:
    """a [R, C] by b [S, C] transposed, plus a bias [S]: [R, S] in BF16."""
    (x, x_factors), (y, y_factors) = a, b
    bias = None if bias is None else bias.bfloat16()
    if native:
        return scaled_mm(x.contiguous(), y.contiguous().t(), x_factors, y_factors.t(), bias=bias, fast=True)
    with part_of("linear", E4M3.name):
        out = (decoded(x) @ decoded(y).t()).mul_(x_factors * y_factors.t())
    return (out if bias is None else out + bias).bfloat16()


def decoded(x: Tensor) -> Tensor:
    """E4M3 numbers in FP32, except NaN. Shifted bits are FP16 numbers, which is four times faster than
    .float() on a CPU.
    """
    bits = x.view(torch.uint8).to(torch.int16)
    bits = (bits & 0x7F) << 7 | (bits & 0x80) << 8
    return bits.view(torch.float16).float().mul_(256)  # the exponent's bias is 7 in E4M3, 15 in FP16
