"""Round FP32 values to a narrower format, and keep them in FP32. Rounding is to nearest, ties to even, with subnormals and infinities."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def to_fp16(x: Tensor) -> Tensor:
    """IEEE half: 10 mantissa bits, subnormals to 2^-24, |x| >= 65520 becomes infinite."""
    return x.half().float()


def to_bf16(x: Tensor) -> Tensor:
    """bfloat16: FP32's exponent with 7 mantissa bits."""
    return x.bfloat16().float()


def to_tf32(x: Tensor) -> Tensor:
    """TF32: FP32's exponent with 10 mantissa bits; the low 13 bits are rounded off."""
    bits = x.view(torch.int32)
    rounded = bits >> 13
    rounded.bitwise_and_(1).add_(bits).add_(0xFFF).bitwise_and_(~0x1FFF)
    return torch.where(x == x, rounded.view(torch.float32), x)  # rounding could turn the bits of a NaN into a number's


def truncated_to_tf32(x: Tensor) -> Tensor:
    """TF32 by dropping the low 13 bits, as Hopper's weight-gradient convolutions read their operands."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def upcast(value: Any) -> Any:
    """FP16 and BF16 tensors as FP32; any other value as it is."""
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def stored_in(dtype: torch.dtype, value: Any) -> Any:
    """FP32 tensors in `dtype`; any other value as it is."""
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def same(x: Tensor) -> Tensor:
    return x


ROUND: dict[str, Callable[[Tensor], Tensor]] = {"fp16": to_fp16, "bf16": to_bf16, "tf32": to_tf32}
