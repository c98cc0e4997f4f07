"""The table of formats against torch.finfo and the published tables; the rounding of TF32."""

import ml_dtypes
import numpy as np
import pytest
import torch

from mpx.precision.formats import FORMATS, ROUND

SMALL = {
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "tf32"])
def test_agrees_with_torch(name):
    fmt, info = FORMATS[name], torch.finfo(FORMATS[name].dtype)
    assert (fmt.bits, fmt.epsilon, fmt.largest) == (info.bits, info.eps, info.max)
    assert (fmt.smallest_normal, fmt.smallest_subnormal) == (
        info.smallest_normal,
        info.smallest_normal * info.eps,
    )


def same(a, b) -> bool:
    """Equal bit for bit, signs of zeros included; one NaN is like another."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def cast(values: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(SMALL[name]).astype(np.float32)


@pytest.mark.parametrize("name", SMALL)
def test_limits_of_rounding(name):
    fmt = FORMATS[name]
    zero = np.array([fmt.rounds_to_zero, fmt.rounds_to_zero * 1.0001], np.float32)
    assert cast(zero, name).tolist() == [0.0, fmt.smallest_subnormal]
    if name != "bf16":  # whose limit is no FP32 number
        got = cast(np.array([fmt.overflows_at * 1.0001, fmt.overflows_at * 0.9999], np.float32), name)
        assert not np.isfinite(got[0])
        assert got[1] == fmt.largest


def test_tf32_agrees_with_integer_arithmetic():
    """To nearest, ties to even, by Python-sized integers: drop the 13 low bits of the FP32 pattern."""
    bits = torch.randint(-(2**31), 2**31 - 1, (200_000,), generator=torch.Generator().manual_seed(0)).to(
        torch.int32
    )
    finite = bits.view(torch.float32)[bits.view(torch.float32).isfinite()]
    pattern, unit = finite.view(torch.int32).to(torch.int64) & 0xFFFFFFFF, 1 << 13
    low = pattern % unit
    up = (low > unit // 2) | ((low == unit // 2) & ((pattern // unit) % 2 == 1))
    expected = (pattern // unit + up.long()) * unit
    expected = torch.where(expected >= 2**31, expected - 2**32, expected).to(torch.int32).view(torch.float32)
    assert same(ROUND["tf32"](finite), expected)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -2.0])
    assert same(ROUND["tf32"](special), special)
