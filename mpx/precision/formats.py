"""The number formats: what each can hold, from its bits alone, and FP32 values rounded to one.

Rounding is to nearest, ties to even, with subnormals and infinities. Rounded values stay FP32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A binary floating point format: 1 sign bit, `exponent_bits`, `mantissa_bits` stored after the implicit
    leading 1.

    has_infinity: False for E4M3, which spends all but one pattern of its top exponent on numbers ("FN":
    finite and NaN). dtype: the torch.dtype that stores it; TF32 is stored as FP32. Sources: IEEE 754-2019;
    NVIDIA A100 whitepaper (TF32); Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    dtype: torch.dtype
    has_infinity: bool = True

    @property
    def bits(self) -> int:
        """Bits that carry information: 19 for TF32, though it is stored in 32."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        return self.smallest_normal * self.epsilon

    @property
    def largest(self) -> float:
        """Largest finite number: 65504 for FP16, 448 for E4M3."""
        if self.has_infinity:
            return math.ldexp(2 - self.epsilon, self.bias)
        return math.ldexp(2 - 2 * self.epsilon, self.bias + 1)

    @property
    def rounds_to_zero(self) -> float:
        """Magnitudes up to this one become zero when rounded to nearest even."""
        return self.smallest_subnormal / 2

    @property
    def overflows_at(self) -> float:
        """Half a step beyond the largest number: magnitudes from here on round to infinity. E4M3 still rounds
        this one to its largest.
        """
        _, exponent = math.frexp(self.largest)
        return self.largest + math.ldexp(0.5, exponent - 1 - self.mantissa_bits)

    @property
    def significant_digits(self) -> float:
        """Decimal digits that a significand holds."""
        return (self.mantissa_bits + 1) * math.log10(2)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("fp64", 11, 52, torch.float64),
        Format("fp32", 8, 23, torch.float32),
        Format("tf32", 8, 10, torch.float32),
        Format("fp16", 5, 10, torch.float16),
        Format("bf16", 8, 7, torch.bfloat16),
        Format("fp8_e4m3", 4, 3, torch.float8_e4m3fn, has_infinity=False),
        Format("fp8_e5m2", 5, 2, torch.float8_e5m2),
    )
}
# the format that a tensor of this dtype holds
STORED = {fmt.dtype: fmt.name for fmt in FORMATS.values() if fmt.name != "tf32"}
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
    # rounding could turn the bits of a NaN into a number's
    return torch.where(x == x, rounded.view(torch.float32), x)


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
