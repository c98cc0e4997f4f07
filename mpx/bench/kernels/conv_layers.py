"""Convolutions of a ResNet, with random operands and a check of their results."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import isqrt, prod

import torch
from torch import Tensor
from torch.nn import functional

from mpx.bench.kernels.work import against, rounding
from mpx.measure.matmul import random_matrix
from mpx.precision.formats import FORMATS

MEASURED = ("fp32", "tf32", "fp16", "bf16")
DIRECTIONS = ("forward", "input gradient", "weight gradient")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
CHECKED = 4  # images whose results are compared; the weight's gradient needs all
IEEE = FORMATS["tf32"].epsilon / 8  # relative error; above it, an FP32 result was computed in TF32


@dataclass(frozen=True)
class Layer:
    """side: the image's side divided by that of the layer's input."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int

    def shapes(self, image: int, batch: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Input [B, in, S, S], weight [out, in, k, k], padding."""
        side = max(self.kernel, image // self.side)
        return (batch, self.inputs, side, side), (self.outputs, self.inputs, self.kernel, self.kernel), self.kernel // 2

    def pixels(self, image: int) -> int:
        """The number of pixels of an output channel."""
        (*_, side), _, padding = self.shapes(image, 1)
        return ((side + 2 * padding - self.kernel) // self.stride + 1) ** 2


LAYERS = (
    Layer("7×7/2, 3→64", 3, 64, 7, 2, 1),
    Layer("3×3, 64→64", 64, 64, 3, 1, 4),
    Layer("3×3, 256→256", 256, 256, 3, 1, 16),
    Layer("1×1, 512→2048", 512, 2048, 1, 1, 32),
)


@dataclass(frozen=True)
class Problem:
    """x: [B, in, S, S], weight: [out, in, k, k], grad: the output's, [B, out, S', S']. flops, error: as in Work."""

    direction: str
    x: Tensor
    weight: Tensor
    grad: Tensor
    stride: int
    padding: int
    flops: float
    error: Callable[[Tensor], float]


def problem(layer: Layer, direction: str, fmt: str, layout: str, image: int, batch: int, device: torch.device) -> Problem:
    of_x, of_weight, padding = layer.shapes(image, batch)
    pixels = layer.pixels(image)
    of_grad = (batch, layer.outputs, *[isqrt(pixels)] * 2)
    x, weight, grad = (
        random_matrix(fmt, shape, device, seed).to(memory_format=LAYOUTS[layout]) for seed, shape in enumerate((of_x, of_weight, of_grad))
    )
    some = slice(None) if direction == "weight gradient" else slice(CHECKED)
    explained = rounding(fmt, batch * pixels if direction == "weight gradient" else prod(of_weight[1:]))

    @cache  # many plans are compared with it
    def reference() -> Tensor:
        return by_products(direction, grad[some].double(), x[some].double(), weight.double(), layer.stride, padding)

    compare = against(reference, min(explained, IEEE) if fmt == "fp32" else explained)
    flops = 2.0 * batch * pixels * prod(of_weight)
    return Problem(direction, x, weight, grad, layer.stride, padding, flops, lambda out: compare(out[some]))


def unfold_and_multiply(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """im2col: the patch of each output pixel is a column of one matrix product. [B, in, S, S] -> [B, out, S', S']"""
    patches = functional.unfold(x, weight.shape[-1], padding=padding, stride=stride)  # [B, in·k², pixels]
    side = (x.shape[-1] + 2 * padding - weight.shape[-1]) // stride + 1
    return (weight.flatten(1) @ patches).unflatten(-1, (side, side))


def by_products(direction: str, grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """im2col in each direction: one matrix product over unfolded patches. Shapes as in Problem.

    The gradient of the input is the folded gradient of the patches (col2im). In float64 this is the reference for kernels.
    """
    if direction == "forward":
        return unfold_and_multiply(x, weight, stride, padding)
    kernel, side = weight.shape[-1], x.shape[-1]
    if direction == "input gradient":
        patches = weight.flatten(1).t() @ grad.flatten(2)  # [B, in·k², pixels]
        return functional.fold(patches, side, kernel, padding=padding, stride=stride)
    patches = functional.unfold(x, kernel, padding=padding, stride=stride)
    pixels = grad.transpose(0, 1).flatten(1)  # [out, B·pixels]
    return (pixels @ patches.transpose(1, 2).flatten(0, 1)).reshape(weight.shape)
