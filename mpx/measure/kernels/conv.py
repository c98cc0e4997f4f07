"""Convolutions of a ResNet by format and memory layout: forward, gradient of the input, gradient of the weight.

cuDNN picks an algorithm by rule of thumb, or times all that it has first (torch.backends.cudnn.benchmark); beside them stands the product
of unfolded patches (im2col) that a convolution is equal to. What cuDNN has picked for a shape it keeps for the thread, whichever way it
was picked, so each way runs in a thread of its own. Source: aten/src/ATen/native/cudnn/Conv_v8.cpp.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isqrt, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mpx.measure.kernels.work import RESULT, Work, against, refused, rounding, timed, too_slow
from mpx.measure.matmul import float32_as, missing, random_matrix

COLUMNS = ("device", "layer", "direction", "format", "layout", "algorithm", "batch", *RESULT, "workspace_mib")
IN = ("fp32", "tf32", "fp16", "bf16")
DIRECTIONS = ("forward", "input gradient", "weight gradient")
LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}
SIDE, BATCH = {"cpu": 64, "cuda": 224}, {"cpu": 4, "cuda": 128}  # of the images
CHECKED = 4  # images of which outputs and gradients are compared; the weight's gradient needs all


@dataclass(frozen=True)
class Layer:
    """side: of its input, as a share of the image's."""

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


LAYERS = (
    Layer("7×7/2, 3→64", 3, 64, 7, 2, 1),
    Layer("3×3, 64→64", 64, 64, 3, 1, 4),
    Layer("3×3, 256→256", 256, 256, 3, 1, 16),
    Layer("1×1, 512→2048", 512, 2048, 1, 1, 32),
)


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per layer, direction, format, layout and algorithm. size: of the images' sides."""
    image = SIDE[device.type] if size == "auto" else size
    for layer in LAYERS if device.type == "cuda" else LAYERS[:3]:
        for fmt in IN:
            announce(f"{layer.name} in {fmt}")
            reason = missing(fmt, device) or (_slow(layer, fmt, image, device) if device.type == "cpu" else None)
            for direction, layout, algorithm in _ways(device):
                about = {"device": device.type, "layer": layer.name, "direction": direction, "format": fmt, "layout": layout}
                about |= {"algorithm": algorithm, "batch": BATCH[device.type]}
                made = refused(reason) if reason else _alone(_one, layer, direction, fmt, layout, algorithm, image, device)
                yield about | {"workspace_mib": None} | made


def _ways(device: torch.device) -> Iterator[tuple[str, str, str]]:
    for direction in DIRECTIONS:
        for layout in LAYOUTS:
            yield from ((direction, layout, way) for way in (("heuristic", "autotuned") if device.type == "cuda" else ("oneDNN",)))
    yield "forward", "NCHW", "im2col + GEMM"


def _alone(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a thread of its own, in which cuDNN remembers no choices."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result()


def _one(layer: Layer, direction: str, fmt: str, layout: str, algorithm: str, image: int, device: torch.device) -> dict[str, Any]:
    extra: dict[str, float] = {}

    def make() -> Work:
        made = work(layer, direction, fmt, layout, image, BATCH[device.type], device, unfolded=algorithm == "im2col + GEMM")
        if device.type == "cuda":
            extra["workspace_mib"] = workspace(made.call, device) / 2**20
        return made

    with benchmark(algorithm == "autotuned"):
        row = timed(make, device, float32_as(fmt))
    return row | ({} if row["reason"] else extra)


@contextmanager
def benchmark(on: bool) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = on
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def workspace(call: Callable[[], Tensor], device: torch.device) -> int:
    """Bytes that a call takes from PyTorch's allocator beyond its result: workspace, and copies in another layout."""
    call()  # a search allocates more than what it finds
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    out = call()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - before - out.numel() * out.element_size())


def work(
    layer: Layer, direction: str, fmt: str, layout: str, image: int, batch: int, device: torch.device, *, unfolded: bool = False
) -> Work:
    of_x, of_weight, padding = layer.shapes(image, batch)
    pixels = _pixels(layer, image)
    of_grad = (batch, layer.outputs, *[isqrt(pixels)] * 2)
    x, weight, grad = (
        random_matrix(fmt, shape, device, seed).to(memory_format=LAYOUTS[layout]) for seed, shape in enumerate((of_x, of_weight, of_grad))
    )
    some = slice(None) if direction == "weight gradient" else slice(CHECKED)
    terms = batch * pixels if direction == "weight gradient" else prod(of_weight[1:])

    def error(out: Tensor) -> float:
        reference = lambda: _exactly(direction, x[some], weight, grad[some], layer.stride, padding)  # noqa: E731
        return against(reference, rounding(fmt, terms))(out[some])

    call = partial(unfold_and_multiply if unfolded else partial(_convolve, direction, grad), x, weight, layer.stride, padding)
    return Work(call, error, 2.0 * batch * pixels * prod(of_weight))


def _convolve(direction: str, grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    if direction == "forward":
        return functional.conv2d(x, weight, None, stride, padding)
    mask = [direction == "input gradient", direction == "weight gradient", False]
    steps = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1
    return torch.ops.aten.convolution_backward(grad, x, weight, None, *steps, mask)[int(mask[1])]


def _pixels(layer: Layer, image: int) -> int:
    """Of an output channel."""
    (*_, side), _, padding = layer.shapes(image, 1)
    return ((side + 2 * padding - layer.kernel) // layer.stride + 1) ** 2


def unfold_and_multiply(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """im2col: each output pixel's patch becomes a column, and the convolution one matrix product. [B, in, S, S] -> [B, out, S', S']"""
    patches = functional.unfold(x, weight.shape[-1], padding=padding, stride=stride)  # [B, in·k², pixels]
    side = (x.shape[-1] + 2 * padding - weight.shape[-1]) // stride + 1
    return (weight.flatten(1) @ patches).unflatten(-1, (side, side))


def _exactly(direction: str, x: Tensor, weight: Tensor, grad: Tensor, stride: int, padding: int) -> Tensor:
    """In float64, through products of unfolded patches: independent of the kernels that are checked."""
    with torch.enable_grad():
        x, weight = (value.double().contiguous().requires_grad_() for value in (x, weight))
        out = unfold_and_multiply(x, weight, stride, padding)
        if direction == "forward":
            return out.detach()
        wanted = x if direction == "input gradient" else weight
        return torch.autograd.grad(out, wanted, grad.double())[0]


def _slow(layer: Layer, fmt: str, image: int, device: torch.device) -> str | None:
    """Judged by one image of a quarter of the side: native FP16 has no convolution worth the name on many CPUs."""
    probe = work(layer, "forward", fmt, "NCHW", max(16, image // 4), 1, device)
    return too_slow(probe, 2.0 * BATCH[device.type] * _pixels(layer, image) * prod(layer.shapes(image, 1)[1]), device)
