"""Convolutions of a ResNet by format and memory layout: forward, gradient of the input, gradient of the
weight.

cuDNN picks an algorithm by a heuristic, or times all of them first (torch.backends.cudnn.benchmark). It keeps
its choice for a shape as long as the thread lives, so each way runs in a thread of its own. Source:
aten/src/ATen/native/cudnn/Conv_v8.cpp.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from mpx.bench.tables import About, device_name, notes, pivot, say
from mpx.bench.work import Row, Work, against, rounding, timed
from mpx.measure.matmul import random_matrix
from mpx.precision.formats import FORMATS
from mpx.render.picture import Picture, picture
from mpx.render.rates import grouped_bars

MEASURED = ("fp32", "tf32", "fp16", "bf16")
DIRECTIONS = ("forward", "input gradient", "weight gradient")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
SIDE, BATCH = {"cpu": 64, "cuda": 224}, {"cpu": 4, "cuda": 128}  # of the images
IEEE = FORMATS["tf32"].epsilon / 8  # relative error; above it, an FP32 result was computed in TF32


@dataclass(frozen=True)
class Layer:
    """A convolution whose padding is half its kernel. side: the image's side divided by its input's."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int

    def call(self, direction: str, x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
        """x: [B, in, S, S]. weight: [out, in, k, k]. grad: of the output, [B, out, S', S']."""
        stride, padding = [self.stride] * 2, [self.kernel // 2] * 2
        if direction == "forward":
            return conv2d(x, weight, None, stride, padding)
        mask = [direction == "input gradient", direction == "weight gradient", False]
        steps = stride, padding, [1, 1], False, [0, 0], 1
        return torch.ops.aten.convolution_backward(grad, x, weight, None, *steps, mask)[int(mask[1])]


LAYERS = (
    Layer("7×7/2, 3→64", 3, 64, 7, 2, 1),
    Layer("3×3, 64→64", 64, 64, 3, 1, 4),
    Layer("3×3, 256→256", 256, 256, 3, 1, 16),
    Layer("1×1, 512→2048", 512, 2048, 1, 1, 32),
)


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per layer, direction, format, layout and algorithm. size: the side of the images."""
    image, batch = SIDE[device.type] if size == "auto" else int(size), BATCH[device.type]
    for layer in LAYERS if device.type == "cuda" else LAYERS[:3]:
        for fmt in MEASURED:
            announce(f"{layer.name} in {fmt}")
            for direction, (layout, algorithm) in product(DIRECTIONS, ways(device)):
                row: Row = {"device": device.type, "layer": layer.name, "direction": direction, "format": fmt}
                row |= {"layout": layout, "algorithm": algorithm, "batch": batch}
                make = partial(work, layer, direction, fmt, layout, image, batch, device)
                yield row | in_new_thread(algorithm, make, device, fmt)


def ways(device: torch.device) -> list[tuple[str, str]]:
    """Pairs of a layout and an algorithm."""
    algorithms = ("heuristic", "autotuned") if device.type == "cuda" else ("oneDNN",)
    return list(product(LAYOUTS, algorithms))


def in_new_thread(algorithm: str, make: Callable[[], Work], device: torch.device, fmt: str) -> Row:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = algorithm == "autotuned"
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(timed, make, device, fmt).result()
    finally:
        torch.backends.cudnn.benchmark = before


def work(
    layer: Layer, direction: str, fmt: str, layout: str, image: int, batch: int, device: torch.device
) -> Work:
    """Checks the result of all images against the same convolution in float64."""
    inside = max(layer.kernel, image // layer.side)
    outside = (inside - 1) // layer.stride + 1
    shapes = (
        (batch, layer.inputs, inside, inside),
        (layer.outputs, layer.inputs, layer.kernel, layer.kernel),
        (batch, layer.outputs, outside, outside),
    )
    operands = [
        random_matrix(fmt, shape, device, seed).to(memory_format=LAYOUTS[layout])
        for seed, shape in enumerate(shapes)
    ]
    per_output = prod(shapes[1][1:])  # products
    terms = batch * outside**2 if direction == "weight gradient" else per_output
    limit = min(rounding(fmt, terms), IEEE) if fmt == "fp32" else rounding(fmt, terms)
    reference = lambda: layer.call(direction, *(operand.double() for operand in operands))  # noqa: E731
    flops = 2.0 * prod(shapes[2]) * per_output
    return Work(partial(layer.call, direction, *operands), against(reference, limit), flops)


def show(about: About, rows: list[Row]) -> None:
    title = f"Convolutions of {rows[0]['batch']} images on {device_name(about)}, TFLOP/s"
    order = list(dict.fromkeys((row["layer"], row["direction"]) for row in rows))
    by_layer = sorted(rows, key=lambda row: order.index((row["layer"], row["direction"])))
    pivot(title, by_layer, ("layer", "direction", "layout", "algorithm"), "format", "tflops_per_s")
    if about["device"] == "cuda":
        say("autotuned: cuDNN timed its algorithms first.")
    notes(about, rows, ("layer", "format"))


def plot(about: About, rows: list[Row]) -> Picture | None:
    bars: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["direction"] == "forward" and row["tflops_per_s"]:
            group = bars.setdefault(f"{row['layer']}, {row['format']}", {})
            group[f"{row['layout']}, {row['algorithm']}"] = row["tflops_per_s"]
    draw = partial(grouped_bars, bars, "TFLOP/s, forward")
    return picture("conv", "Convolutions", device_name(about), "Forward pass.", draw)
