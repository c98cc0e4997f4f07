"""Rounding against an independent implementation and against the definition of each format."""

import numpy as np
import pytest
import torch

from mpx.precision.rounding import to_bf16, to_fp16, to_tf32


def wide_values(count=200_000):
    """Random bit patterns: every exponent, subnormals, infinities and NaN among them."""
    bits = torch.randint(-(2**31), 2**31 - 1, (count,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    return bits.view(torch.float32)


def same(a, b):
    return bool(((a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())).all())


def test_fp16_agrees_with_numpy():
    x = wide_values()
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(x.numpy().astype(np.float16).astype(np.float32))
    assert same(to_fp16(x), expected)


@pytest.mark.parametrize(("round_", "bits"), [(to_bf16, 16), (to_tf32, 13)])
def test_truncated_formats_agree_with_integer_arithmetic(round_, bits):
    """To nearest, ties to even, by Python-sized integers: drop `bits` low bits of the FP32 pattern."""
    x = wide_values()
    finite = x[torch.isfinite(x)]
    pattern = finite.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    unit = 1 << bits
    low = pattern % unit
    up = (low > unit // 2) | ((low == unit // 2) & ((pattern // unit) % 2 == 1))
    expected = ((pattern // unit + up.long()) * unit).to(torch.int64)
    expected = torch.where(expected >= 2**31, expected - 2**32, expected).to(torch.int32).view(torch.float32)
    assert same(round_(finite), expected)


@pytest.mark.parametrize("round_", [to_fp16, to_bf16, to_tf32])
def test_special_values_and_idempotence(round_):
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -2.0])
    assert same(round_(special), special)
    x = wide_values(10_000)
    assert same(round_(round_(x)), round_(x))


def test_fp16_range():
    x = torch.tensor([65504.0, 65519.9, 65520.0, 2.0**-24, 2.0**-25, 2.0**-25 * 1.001])
    assert to_fp16(x).tolist() == [65504.0, 65504.0, float("inf"), 2.0**-24, 0.0, 2.0**-24]
