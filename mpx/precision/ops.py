"""The ATen operations that multiply matrices, forward and backward. A precision mode decides their
formats.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

# operation -> (kind, positions of the operands that are multiplied). Other tensors are added, or only shape
# the result.
MULTIPLIED: dict[str, tuple[str, tuple[int, ...]]] = {
    "aten.mm": ("matmul", (0, 1)),
    "aten.addmm": ("matmul", (1, 2)),
    "aten._grouped_mm": ("matmul", (0, 1)),  # of a mixture of experts; autocast leaves it alone
    "aten.mv": ("matmul", (0, 1)),
    "aten.addmv": ("matmul", (1, 2)),
    "aten._scaled_mm": ("linear", (0, 1)),  # FP8; only linear layers have it
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


class Replacing(TorchFunctionMode):
    """Under this mode, torch.nn.functional.<name> is `function`."""

    def __init__(self, name: str, function: Any):
        super().__init__()
        self.name, self.plain, self.function = name, getattr(functional, name), function

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.multi_head_attention_forward:
            return (self.function if func is self.plain else func)(*args, **kwargs)
        # it calls the function by this name, where modes see no calls
        setattr(functional, self.name, self.function)
        try:
            return func(*args, **kwargs)
        finally:
            setattr(functional, self.name, self.plain)


_part_of: list[tuple[str, str]] = []  # global, because a backward pass may run in another thread


@contextmanager
def part_of(kind: str, fmt: str) -> Iterator[None]:
    """Operations inside are steps of one larger operation (an LSTM, an attention, an FP8 layer) that rounds
    to `fmt` itself.

    They are not rounded again, and count as `kind` in `fmt`.
    """
    _part_of.append((kind, fmt))
    try:
        yield
    finally:
        _part_of.pop()


def inside() -> tuple[str, str] | None:
    """(kind, format) of the larger operation that is being computed, else None."""
    return _part_of[-1] if _part_of else None
