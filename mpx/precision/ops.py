"""Which ATen operations multiply matrices: the ones that a precision mode is about, forward and backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# operation -> kind and the positions of the operands that are multiplied; other tensors are added or only shape the result
MULTIPLIED: dict[str, tuple[str, tuple[int, ...]]] = {
    "aten.mm": ("matmul", (0, 1)),
    "aten.addmm": ("matmul", (1, 2)),
    "aten.mv": ("matmul", (0, 1)),
    "aten.addmv": ("matmul", (1, 2)),
    "aten._scaled_mm": ("matmul", (0, 1)),
    "aten.bmm": ("bmm", (0, 1)),
    "aten.baddbmm": ("bmm", (1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": ("attention", (0, 1, 2, 3)),
    "aten._scaled_dot_product_flash_attention": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_flash_attention_backward": ("attention", (0, 1, 2, 3)),
    "aten._scaled_dot_product_efficient_attention": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_efficient_attention_backward": ("attention", (0, 1, 2, 3)),
    "aten._scaled_dot_product_cudnn_attention": ("attention", (0, 1, 2)),
    "aten._scaled_dot_product_cudnn_attention_backward": ("attention", (0, 1, 2, 3)),
    "aten.convolution": ("conv", (0, 1)),
    "aten.convolution_backward": ("conv", (0, 1, 2)),
    "aten._cudnn_rnn": ("rnn", (0, 1)),
    "aten._cudnn_rnn_backward": ("rnn", (0, 1)),
    "aten.mkldnn_rnn_layer": ("rnn", (0, 1, 2, 5)),
    "aten.mkldnn_rnn_layer_backward": ("rnn", (0, 1, 2, 5, 10)),
}


def multiplied(func: Any) -> tuple[str, tuple[int, ...]] | None:
    """(kind, operand positions) of an operation that multiplies matrices, else None."""
    return MULTIPLIED.get(str(func.overloadpacket))


@contextmanager
def replaced(name: str, function: Any) -> Iterator[None]:
    """torch.nn.functional.<name> is `function` for a moment."""
    before = getattr(torch.nn.functional, name)
    setattr(torch.nn.functional, name, function)
    try:
        yield
    finally:
        setattr(torch.nn.functional, name, before)


_part_of: list[tuple[str, str]] = []  # the innermost larger operation that is being computed, and the format it emulates


@contextmanager
def part_of(kind: str, fmt: str) -> Iterator[None]:
    """Operations inside are steps of one larger operation (an LSTM, an attention, an FP8 layer) that rounds to `fmt` by itself:
    they are not rounded again, and are counted as `kind` in `fmt`. A global, since a backward pass may run in another thread."""
    _part_of.append((kind, fmt))
    try:
        yield
    finally:
        _part_of.pop()


def inside() -> tuple[str, str] | None:
    """(kind, format) of the larger operation that is being computed, else None."""
    return _part_of[-1] if _part_of else None
