"""Count the gradients that vanish or overflow in a narrow format, on the device and before they are rounded,
in sampled steps.
"""

from math import gcd
from typing import Any

import torch
from torch import Tensor

from mpx.precision.formats import FORMATS, HALVES, Format, upcast
from mpx.precision.ops import inside, multiplied
from mpx.precision.switches import tf32_products
from mpx.private.torch_dispatch import (
    TO_COPY,
    TorchDispatchMode,
    computing_again,
    tree_leaves,
    tree_map,
    without_dispatch_modes,
)

LOWEST, HIGHEST = -60, 20  # exponents of a histogram
BINS = HIGHEST - LOWEST + 2  # and one for zeros
SAMPLE = 2**20  # values of one tensor: they tell a share to a thousandth
# kinds of operations; fused RNNs and attention round inside, where nothing can be counted
COUNTED = ("matmul", "bmm", "conv")


class GradientWatch(TorchDispatchMode):
    """Enter it around a backward pass. In the results of matrix products and convolutions, before they are
    rounded, it counts:

    - nonzero values
    - values that become zero in `fmt` at the current loss scale (`scale`; 1 without scaling)
    - values that would become zero in FP16 without scaling
    - values beyond the range of `fmt`

    It computes each product in a 16-bit format again with an FP32 result, from the same operands (in TF32,
    which represents them exactly). In FP8 it counts the values that are cast to E4M3.
    """

    def __init__(self, fmt: str, scale: Tensor | None):
        super().__init__()
        self.format: Format = FORMATS[fmt]
        self.scale = 1.0 if scale is None else scale
        # float64 [4] on the device: nonzero, underflow, underflow unscaled, overflow
        self.counts: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if computing_again():
            return func(*args, **kwargs)  # activations, not gradients
        if func is TO_COPY.default and kwargs.get("dtype") == torch.float8_e4m3fn:
            self._count(args[0])
        out = func(*args, **kwargs)
        product = multiplied(func)
        # a step of an emulated LSTM or attention has that one's kind
        kind = (inside() or product or (None,))[0]
        if self.format.name != "fp8_e4m3" and product is not None and kind in COUNTED:
            for value in tree_leaves(_exactly(func, args, kwargs, out)):
                if isinstance(value, Tensor):
                    self._count(value)
        return out

    def _count(self, values: Tensor) -> None:
        values = values.detach()
        size = _some(values).abs()
        nonzero, finite = size != 0, size < self.format.overflows_at  # NaN is neither zero nor finite
        counts = [
            nonzero,
            nonzero & (size <= self.format.rounds_to_zero),
            nonzero & (size <= FORMATS["fp16"].rounds_to_zero * self.scale),
            ~finite,
        ]
        # values for each of those looked at, so that a large tensor has its weight
        stands_for = values.numel() / max(1, size.numel())
        counted = torch.stack([count.sum() for count in counts]).double() * stands_for
        self.counts = counted if self.counts is None else self.counts + counted


def _some(values: Tensor) -> Tensor:
    """All values, or evenly spread values of a large tensor."""
    if values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last):
        values = values.permute(0, 2, 3, 1)  # the order of memory, which flattens without a copy
    stride = max(1, values.numel() // SAMPLE)
    while stride > 1 and gcd(stride, values.shape[-1]) > 1:  # else some channels would never be counted
        stride += 1
    return values.flatten()[::stride]


def _exactly(func: Any, args: tuple, kwargs: dict, out: Any) -> Any:
    """The result in FP32, before it is rounded to a 16-bit format."""
    if not any(isinstance(value, Tensor) and value.dtype in HALVES for value in tree_leaves(out)):
        return out
    with without_dispatch_modes(), tf32_products():  # other modes must not count these operations
        return func(*tree_map(upcast, args), **tree_map(upcast, kwargs))


def exponents(gradient: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """A histogram of log2 |gradient / scale|: int64 counts of zeros, then of each exponent from LOWEST to
    HIGHEST.

    Smaller and larger exponents count at the ends, infinite and NaN gradients at the upper one.
    """
    unscaled = gradient.detach().float() / scale
    _, exponent = torch.frexp(unscaled)
    bins = (exponent - 1).clamp(LOWEST, HIGHEST) - LOWEST + 1
    bins = torch.where(torch.isfinite(unscaled), bins, HIGHEST - LOWEST + 1)
    bins = torch.where(unscaled == 0, 0, bins).flatten()
    counts = torch.zeros(BINS, dtype=torch.int64, device=bins.device)
    return counts.scatter_add_(0, bins.long(), torch.ones_like(bins, dtype=torch.int64))
