"""Scaled dot-product attention by kernel, format and mask: forward and backward.

Backward is timed alone: one forward pass is differentiated repeatedly. A causal mask counts half of the
operations.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from mpx.bench.tables import About, device_name, notes, pivot, say
from mpx.bench.work import Result, Row, Work, against, ladder, rounding, timed, too_slow
from mpx.measure.matmul import float32_as, missing, random_matrix
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
            reason = missing(fmt, device)
            if reason is None and device.type == "cpu":
                probe = work("forward", "none", fmt, (CHECKED, 1, 32, HEAD_SIZE), device)
                reason = too_slow(probe, 2.5 * sdpa_flop_count(shape, shape, shape), device)
            for kernel in ON[device.type]:
                for mask in MASKS:
                    for direction in DIRECTIONS:
                        row = about | {"direction": direction, "mask": mask, "format": fmt, "kernel": kernel}
                        yield row | _by_kernel(kernel, direction, mask, fmt, shape, device, reason)


def _by_kernel(
    kernel: str,
    direction: str,
    mask: str,
    fmt: str,
    shape: tuple[int, ...],
    device: torch.device,
    reason: str | None,
) -> Row:
    """If the kernel refuses to run, PyTorch's warning is the reason."""
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel(KERNELS[kernel]):
        warnings.simplefilter("always")
        row = timed(partial(work, direction, mask, fmt, shape, device), device, float32_as(fmt), reason)
    if row["reason"] and (why := _why([str(warning.message) for warning in caught])):
        row["reason"] = why
    return row


def _why(messages: list[str]) -> str | None:
    """The warning with the reason, without its place in PyTorch's source. The others concern kernels not
    asked for.
    """
    in_source = re.compile(r"\(Triggered internally.*", flags=re.DOTALL)
    lines = [" ".join(in_source.sub("", message).split()) for message in messages]
    lines = [
        line
        for line in lines
        if not line.endswith("kernel not used because:") and "runtime disabled" not in line
    ]
    return lines[0][:120] if lines else None


def work(direction: str, mask: str, fmt: str, shape: tuple[int, ...], device: torch.device) -> Work:
    """Checks the outputs, or the gradients of queries, keys and values, of the first two sequences."""
    q, k, v, grad = (random_matrix(fmt, shape, device, seed) for seed in range(4))
    keep = _padding(shape, device) if mask == "padding" else None
    attend = partial(scaled_dot_product_attention, attn_mask=keep, is_causal=mask == "causal")
    forward = direction == "forward"
    count = (
        sdpa_flop_count(shape, shape, shape)
        if forward
        else sdpa_backward_flop_count(shape, shape, shape, shape)
    )
    flops = count / 2 if mask == "causal" else count

    def reference() -> Result:
        few = [value[:CHECKED].double() for value in (q, k, v, grad)]
        return _exactly(direction, mask, *few)

    compare = against(reference, rounding(fmt, shape[2]))
    if forward:
        return Work(lambda: attend(q, k, v), lambda out: compare(out[:CHECKED]), flops)
    with torch.enable_grad():
        inputs = [value.requires_grad_() for value in (q, k, v)]
        out = attend(*inputs)
    call = lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)  # noqa: E731
    return Work(call, lambda grads: compare([part[:CHECKED] for part in grads]), flops)


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


def plot(about: About, rows: list[Row]) -> Picture:
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
