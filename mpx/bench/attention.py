"""Scaled dot-product attention by kernel, format and mask: forward and backward.

Backward is timed alone: one forward pass is differentiated repeatedly. A causal mask counts half of the
operations.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from mpx.bench.tables import About, device_name, notes, pivot, say
from mpx.bench.work import Result, Row, Work, against, ladder, rounding, timed
from mpx.measure.matmul import random_matrix
from mpx.render.picture import Picture, picture
from mpx.render.rates import grouped_bars

MEASURED = ("fp32", "fp16", "bf16")  # the fused kernels have no TF32
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ON = {"cuda": tuple(KERNELS), "cpu": ("flash", "math")}
MASKS = ("none", "causal", "padding")  # padding: the last quarter of the keys of every second sequence
DIRECTIONS = ("forward", "backward")
LENGTH = {"cpu": 256, "cuda": 2048}
TOKENS = {"cpu": 1024, "cuda": 32768}  # sequences × length
HEADS, HEAD_SIZE = {"cpu": 4, "cuda": 16}, 64
CHECKED = 2  # sequences: one without padding, one with


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per direction, mask, format, kernel and length. size: the longest sequences; a quarter comes
    first on a GPU.
    """
    longest = LENGTH[device.type] if size == "auto" else int(size)
    lengths = ladder(longest, steps=3)[::-2][::-1] if device.type == "cuda" else [longest]
    for length in lengths:
        shape = (max(CHECKED, TOKENS[device.type] // length), HEADS[device.type], length, HEAD_SIZE)
        about = {"device": device.type} | dict(
            zip(("batch", "heads", "length", "head_size"), shape, strict=True)
        )
        for fmt in MEASURED:
            announce(f"attention over {length} tokens in {fmt}")
            for kernel, mask, direction in product(ON[device.type], MASKS, DIRECTIONS):
                make = partial(work, direction, mask, fmt, shape, device)
                with warnings.catch_warnings(), sdpa_kernel(KERNELS[kernel]):
                    warnings.simplefilter("ignore")  # a kernel that refuses to run warns before its error
                    row = timed(make, device, fmt)
                names = {"direction": direction, "mask": mask, "format": fmt, "kernel": kernel}
                yield about | names | row


def work(direction: str, mask: str, fmt: str, shape: tuple[int, ...], device: torch.device) -> Work:
    """Checks the outputs, or the gradients of queries, keys and values, of the first two sequences, against
    the operations one by one in float64.
    """
    q, k, v, grad = (random_matrix(fmt, shape, device, seed) for seed in range(4))
    keep = _padding(shape, device) if mask == "padding" else None
    forward = direction == "forward"

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        padding = None if keep is None else keep[: len(q)]
        return scaled_dot_product_attention(q, k, v, padding, is_causal=mask == "causal")

    def reference() -> Result:
        few = [value[:CHECKED].double().requires_grad_() for value in (q, k, v)]
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            out = attend(*few)
        return out.detach() if forward else torch.autograd.grad(out, few, grad[:CHECKED].double())

    compare = against(reference, rounding(fmt, shape[2]))
    share = 0.5 if mask == "causal" else 1.0
    if forward:
        flops = share * sdpa_flop_count(shape, shape, shape)
        return Work(lambda: attend(q, k, v), lambda out: compare(out[:CHECKED]), flops)
    with torch.enable_grad():
        inputs = [value.requires_grad_() for value in (q, k, v)]
        out = attend(*inputs)
    backward = lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)  # noqa: E731
    flops = share * sdpa_backward_flop_count(shape, shape, shape, shape)
    return Work(backward, lambda grads: compare([part[:CHECKED] for part in grads]), flops)


def _padding(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """[B, 1, 1, T], True for keys that are not padding."""
    batch, _, length, _ = shape
    keep = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device)
    keep[1::2, ..., -(length // 4) :] = False
    return keep


def show(about: About, rows: list[Row]) -> None:
    for length in dict.fromkeys(row["length"] for row in rows):
        some = [row for row in rows if row["length"] == length]
        shape = f"{some[0]['batch']}×{some[0]['heads']} heads of {some[0]['head_size']}, {length} tokens"
        title = f"Attention on {device_name(about)}, {shape}, TFLOP/s"
        pivot(title, some, ("direction", "mask", "format"), "kernel", "tflops_per_s")
    say(
        "causal counts half of the operations; backward 2.5 times forward's, since fused kernels compute "
        "the scores again. "
        "padding: a mask that leaves out the last quarter of every second sequence, counted in full."
    )
    notes(about, rows, ("kernel", "format", "mask"))


def plot(about: About, rows: list[Row]) -> Picture | None:
    longest = rows[-1]["length"]
    bars: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["tflops_per_s"] and row["length"] == longest:
            mask = "no mask" if row["mask"] == "none" else f"{row['mask']} mask"
            bars.setdefault(f"{row['direction']}, {mask}, {row['format']}", {})[row["kernel"]] = row[
                "tflops_per_s"
            ]
    draw = partial(grouped_bars, bars, f"TFLOP/s, {longest} tokens")
    return picture("attention", "Attention", device_name(about), f"Sequences of {longest} tokens.", draw)
