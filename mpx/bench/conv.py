"""Convolutions of a ResNet by format and memory layout: forward, gradient of the input, gradient of the
weight.

cuDNN picks an algorithm by a heuristic, or times all of them first (torch.backends.cudnn.benchmark). It keeps
its choice for a shape as long as the thread lives, so each way runs in a thread of its own. im2col, the
matrix product of unfolded patches, equals a convolution. Source: aten/src/ATen/native/cudnn/Conv_v8.cpp.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import isqrt, prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mpx.bench.tables import About, device_name, notes, pivot, say
from mpx.bench.work import Row, Work, against, rounding, timed, too_slow
from mpx.measure.matmul import float32_as, missing, random_matrix
from mpx.precision.formats import FORMATS
from mpx.render.picture import Picture, picture
from mpx.render.rates import grouped_bars

MEASURED = ("fp32", "tf32", "fp16", "bf16")
DIRECTIONS = ("forward", "input gradient", "weight gradient")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
IM2COL = "im2col + GEMM"
SIDE, BATCH = {"cpu": 64, "cuda": 224}, {"cpu": 4, "cuda": 128}  # of the images
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
        return (
            (batch, self.inputs, side, side),
            (self.outputs, self.inputs, *[self.kernel] * 2),
            self.kernel // 2,
        )

    def pixels(self, image: int) -> int:
        """The number of pixels of an output channel."""
        (*_, side), _, padding = self.shapes(image, 1)
        return ((side + 2 * padding - self.kernel) // self.stride + 1) ** 2

    def flops(self, image: int, batch: int) -> float:
        return 2.0 * batch * self.pixels(image) * prod(self.shapes(image, 1)[1])


LAYERS = (
    Layer("7×7/2, 3→64", 3, 64, 7, 2, 1),
    Layer("3×3, 64→64", 64, 64, 3, 1, 4),
    Layer("3×3, 256→256", 256, 256, 3, 1, 16),
    Layer("1×1, 512→2048", 512, 2048, 1, 1, 32),
)


class Operands(NamedTuple):
    """grad: the output's, [B, out, S', S']; x: [B, in, S, S]; weight: [out, in, k, k]."""

    grad: Tensor
    x: Tensor
    weight: Tensor
    stride: int
    padding: int


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per layer, direction, format, layout and algorithm. size: the side of the images."""
    image, batch = SIDE[device.type] if size == "auto" else int(size), BATCH[device.type]
    for layer in LAYERS if device.type == "cuda" else LAYERS[:3]:
        for fmt in MEASURED:
            announce(f"{layer.name} in {fmt}")
            reason = missing(fmt, device)
            if reason is None and device.type == "cpu":  # on many CPUs FP16 convolutions are far too slow
                probe = work(layer, "forward", fmt, "NCHW", "oneDNN", max(16, image // 4), 1, device)
                reason = too_slow(probe, layer.flops(image, batch), device)
            for direction in DIRECTIONS:
                for layout, algorithm in ways(device):
                    about: Row = {
                        "device": device.type,
                        "layer": layer.name,
                        "direction": direction,
                        "format": fmt,
                    }
                    about |= {"layout": layout, "algorithm": algorithm, "batch": batch}
                    make = partial(work, layer, direction, fmt, layout, algorithm, image, batch, device)
                    yield about | in_new_thread(algorithm, make, device, fmt, reason)


def ways(device: torch.device) -> list[tuple[str, str]]:
    algorithms = ("heuristic", "autotuned") if device.type == "cuda" else ("oneDNN",)
    return [(layout, algorithm) for layout in LAYOUTS for algorithm in algorithms] + [("NCHW", IM2COL)]


def in_new_thread(
    algorithm: str, make: Callable[[], Work], device: torch.device, fmt: str, reason: str | None
) -> Row:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = algorithm == "autotuned"
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(timed, make, device, float32_as(fmt), reason).result()
    finally:
        torch.backends.cudnn.benchmark = before


def work(
    layer: Layer,
    direction: str,
    fmt: str,
    layout: str,
    algorithm: str,
    image: int,
    batch: int,
    device: torch.device,
) -> Work:
    of_x, of_weight, padding = layer.shapes(image, batch)
    pixels = layer.pixels(image)
    of_grad = (batch, layer.outputs, *[isqrt(pixels)] * 2)
    x, weight, grad = (
        random_matrix(fmt, shape, device, seed).to(memory_format=LAYOUTS[layout])
        for seed, shape in enumerate((of_x, of_weight, of_grad))
    )
    given = Operands(grad, x, weight, layer.stride, padding)
    some = slice(None) if direction == "weight gradient" else slice(CHECKED)
    explained = rounding(fmt, batch * pixels if direction == "weight gradient" else prod(of_weight[1:]))

    def error(out: Tensor) -> float:
        exact = Operands(grad[some].double(), x[some].double(), weight.double(), layer.stride, padding)
        limit = min(explained, IEEE) if fmt == "fp32" else explained
        return against(lambda: im2col(direction, exact), limit)(out[some])

    way = im2col if algorithm == IM2COL else convolve
    return Work(partial(way, direction, given), error, layer.flops(image, batch))


def convolve(direction: str, given: Operands) -> Tensor:
    grad, x, weight, stride, padding = given
    if direction == "forward":
        return functional.conv2d(x, weight, None, stride, padding)
    mask = [direction == "input gradient", direction == "weight gradient", False]
    steps = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1
    return torch.ops.aten.convolution_backward(grad, x, weight, None, *steps, mask)[int(mask[1])]


def im2col(direction: str, given: Operands) -> Tensor:
    """One matrix product over unfolded patches. In float64 this is the reference for kernels.

    The gradient of the input is the folded gradient of the patches (col2im).
    """
    grad, x, weight, stride, padding = given
    kernel, side = weight.shape[-1], x.shape[-1]
    if direction == "input gradient":
        patches = weight.flatten(1).t() @ grad.flatten(2)  # [B, in·k², pixels]
        return functional.fold(patches, side, kernel, padding=padding, stride=stride)
    patches = functional.unfold(x, kernel, padding=padding, stride=stride)
    if direction == "forward":
        out_side = (side + 2 * padding - kernel) // stride + 1
        return (weight.flatten(1) @ patches).unflatten(-1, (out_side, out_side))
    pixels = grad.transpose(0, 1).flatten(1)  # [out, B·pixels]
    return (pixels @ patches.transpose(1, 2).flatten(0, 1)).reshape(weight.shape)


def show(about: About, rows: list[Row]) -> None:
    title = f"Convolutions of {rows[0]['batch']} images on {device_name(about)}, TFLOP/s"
    order = list(dict.fromkeys((row["layer"], row["direction"]) for row in rows))
    by_layer = sorted(rows, key=lambda row: order.index((row["layer"], row["direction"])))
    pivot(title, by_layer, ("layer", "direction", "layout", "algorithm"), "format", "tflops_per_s")
    say(f"{IM2COL}: one matrix product over unfolded patches. autotuned: cuDNN timed its algorithms first.")
    notes(about, rows, ("layer", "format"))


def plot(about: About, rows: list[Row]) -> Picture:
    bars: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["direction"] == "forward" and row["tflops_per_s"]:
            group = bars.setdefault(f"{row['layer']}, {row['format']}", {})
            group[f"{row['layout']}, {row['algorithm']}"] = row["tflops_per_s"]
    draw = partial(grouped_bars, bars, "TFLOP/s, forward")
    return picture("conv", "Convolutions", device_name(about), "Forward pass.", draw)
