"""Scaled dot-product attention by kernel, format and mask: forward and backward.

Backward is timed alone: one forward pass is differentiated repeatedly. A causal mask counts half of the operations.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from mpx.bench.kernels.work import RESULT, Result, Work, against, ladder, refused, rounding, timed, too_slow
from mpx.measure.matmul import float32_as, missing, random_matrix

COLUMNS = ("device", "direction", "mask", "format", "kernel", "batch", "heads", "length", "head_size", *RESULT)
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


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per direction, mask, format, kernel and length. size: the longest sequences. On a GPU, sequences of a quarter come first."""
    heads = HEADS[device.type]
    for length in lengths(LENGTH[device.type] if size == "auto" else size, device):
        batch = max(CHECKED, TOKENS[device.type] // length)
        shape = (batch, heads, length, HEAD_SIZE)
        about = {"device": device.type, "batch": batch, "heads": heads, "length": length, "head_size": HEAD_SIZE}
        for fmt in MEASURED:
            announce(f"attention over {length} tokens in {fmt}")
            reason = missing(fmt, device) or (_slow(fmt, shape, device) if device.type == "cpu" else None)
            for kernel in ON[device.type]:
                for mask in MASKS:
                    for direction in DIRECTIONS:
                        row = about | {"direction": direction, "mask": mask, "format": fmt, "kernel": kernel}
                        made = refused(reason) if reason else _one(kernel, direction, mask, fmt, shape, device)
                        yield {column: (row | made)[column] for column in COLUMNS}


def lengths(longest: int, device: torch.device) -> list[int]:
    """`longest`, and on a GPU also a quarter of it, if that is a size of `ladder`."""
    return ladder(longest, steps=3)[::-2][::-1] if device.type == "cuda" else [longest]


def _one(kernel: str, direction: str, mask: str, fmt: str, shape: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """A kernel's row. If the kernel refuses to run, PyTorch's warning is the reason."""
    with warnings.catch_warnings(record=True) as said, sdpa_kernel(KERNELS[kernel]):
        warnings.simplefilter("always")
        row = timed(lambda: work(direction, mask, fmt, shape, device), device, float32_as(fmt))
    if row["reason"] and (why := _why([str(warning.message) for warning in said])):
        row["reason"] = why
    return row


def _why(messages: list[str]) -> str | None:
    """The warning with the reason, without its place in PyTorch's source. The other warnings concern kernels that were not requested."""
    lines = [" ".join(re.sub(r"\(Triggered internally.*", "", message, flags=re.DOTALL).split()) for message in messages]
    lines = [line for line in lines if not line.endswith("kernel not used because:") and "runtime disabled" not in line]
    return lines[0][:120] if lines else None


def work(direction: str, mask: str, fmt: str, shape: tuple[int, ...], device: torch.device) -> Work:
    """Checks the outputs, or the gradients of queries, keys and values, of the first two sequences."""
    q, k, v, grad = (random_matrix(fmt, shape, device, seed) for seed in range(4))
    options = {"attn_mask": _padding(shape, device) if mask == "padding" else None, "is_causal": mask == "causal"}
    count = sdpa_flop_count(shape, shape, shape) if direction == "forward" else sdpa_backward_flop_count(shape, shape, shape, shape)
    flops = count / 2 if mask == "causal" else count

    def reference() -> Result:
        few = [value[:CHECKED].double() for value in (q, k, v, grad)]
        return _exactly(direction, mask, *few)

    allowed = rounding(fmt, shape[2])
    if direction == "forward":
        return Work(lambda: scaled_dot_product_attention(q, k, v, **options), lambda out: against(reference, allowed)(out[:CHECKED]), flops)
    with torch.enable_grad():
        q, k, v = (value.requires_grad_() for value in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, **options)
    error = lambda grads: against(reference, allowed)([found[:CHECKED] for found in grads])  # noqa: E731
    return Work(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), error, flops)


def _padding(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """[B, 1, 1, T], True for keys that are not padding."""
    batch, _, length, _ = shape
    keep = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device)
    keep[1::2, ..., -(length // 4) :] = False
    return keep


def _exactly(direction: str, mask: str, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> Result:
    """softmax(q·kᵀ ÷ √d)·v, written out."""
    with torch.enable_grad():
        q, k, v = (value.requires_grad_() for value in (q, k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask == "causal":
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        elif mask == "padding":
            scores = scores.masked_fill(~_padding(tuple(q.shape), q.device), float("-inf"))
        out = scores.softmax(-1) @ v
        return out.detach() if direction == "forward" else torch.autograd.grad(out, (q, k, v), grad)


def _slow(fmt: str, shape: tuple[int, ...], device: torch.device) -> str | None:
    """Why attention is left out, judged by two short sequences."""
    probe = work("forward", "none", fmt, (CHECKED, 1, 32, HEAD_SIZE), device)
    return too_slow(probe, 2.5 * sdpa_flop_count(shape, shape, shape), device)
