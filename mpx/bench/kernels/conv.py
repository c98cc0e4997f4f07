"""Convolutions of a ResNet by format and memory layout: forward, gradient of the input, gradient of the weight.

cuDNN picks an algorithm by a heuristic, or times all of them first (torch.backends.cudnn.benchmark). Also measured are the matrix product
of unfolded patches (im2col), which equals a convolution, and each of cuDNN's algorithms by itself (conv_plans). cuDNN keeps its choice for
a shape as long as the thread lives, so each way runs in a thread of its own.
Source: aten/src/ATen/native/cudnn/Conv_v8.cpp.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mpx.bench.kernels import conv_plans
from mpx.bench.kernels.conv_layers import DIRECTIONS, LAYERS, LAYOUTS, MEASURED, Layer, by_products, problem
from mpx.bench.kernels.work import RESULT, Work, refused, timed, too_slow
from mpx.measure.matmul import float32_as, missing

COLUMNS = ("device", "layer", "direction", "format", "layout", "algorithm", "batch", *RESULT, "workspace_mib", "plan")
SIDE, BATCH = {"cpu": 64, "cuda": 224}, {"cpu": 4, "cuda": 128}  # of the images


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per layer, direction, format, layout and algorithm, and one per plan of cuDNN. size: the side of the images."""
    image, batch = SIDE[device.type] if size == "auto" else size, BATCH[device.type]
    for layer in LAYERS if device.type == "cuda" else LAYERS[:3]:
        for fmt in MEASURED:
            announce(f"{layer.name} in {fmt}")
            about = {"device": device.type, "layer": layer.name, "format": fmt, "batch": batch}
            no_format = missing(fmt, device)
            reason = no_format or (_slow(layer, fmt, image, device) if device.type == "cpu" else None)
            for direction, layout, algorithm in _ways(device):
                way = {"direction": direction, "layout": layout, "algorithm": algorithm, "workspace_mib": None, "plan": None}
                made = refused(reason) if reason else _alone(_one, layer, direction, fmt, layout, algorithm, image, device)
                yield about | way | made
            reason = no_format or conv_plans.absent(device)
            for direction in DIRECTIONS:
                given = (layer, direction, fmt, image, batch, device)
                rows = [conv_plans.none(reason)] if reason else conv_plans.measure(*given)
                yield from (about | {"direction": direction, "layout": "channels_last"} | row for row in rows)


def _ways(device: torch.device) -> Iterator[tuple[str, str, str]]:
    for direction in DIRECTIONS:
        for layout in LAYOUTS:
            yield from ((direction, layout, way) for way in (("heuristic", "autotuned") if device.type == "cuda" else ("oneDNN",)))
        yield direction, "NCHW", "im2col + GEMM"


def _alone(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a new thread, where cuDNN has made no choice yet."""
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
    """Bytes that a call requests from PyTorch's allocator beyond its result: a workspace, and copies in another layout."""
    call()  # the first call may search, which allocates more
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]  # the granted block may be larger
    out = call()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.memory_stats(device)["requested_bytes.all.peak"] - before - out.numel() * out.element_size())


def work(
    layer: Layer, direction: str, fmt: str, layout: str, image: int, batch: int, device: torch.device, *, unfolded: bool = False
) -> Work:
    given = problem(layer, direction, fmt, layout, image, batch, device)
    way = by_products if unfolded else _convolve
    return Work(partial(way, direction, given.grad, given.x, given.weight, given.stride, given.padding), given.error, given.flops)


def _convolve(direction: str, grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    if direction == "forward":
        return functional.conv2d(x, weight, None, stride, padding)
    mask = [direction == "input gradient", direction == "weight gradient", False]
    steps = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1
    return torch.ops.aten.convolution_backward(grad, x, weight, None, *steps, mask)[int(mask[1])]


def _slow(layer: Layer, fmt: str, image: int, device: torch.device) -> str | None:
    """Why a convolution is left out, judged by one small image: on many CPUs FP16 convolutions are far too slow."""
    probe = work(layer, "forward", fmt, "NCHW", max(16, image // 4), 1, device)
    return too_slow(probe, 2.0 * BATCH[device.type] * layer.pixels(image) * prod(layer.shapes(image, 1)[1]), device)
