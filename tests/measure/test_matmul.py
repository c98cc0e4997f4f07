"""Products in each format: what a machine has, and that wrong ones are refused."""

from dataclasses import replace

import pytest
import torch
from int8_products import EXACT_INT8

from mpx.measure.matmul import (
    PRODUCT_FORMATS,
    WrongProductError,
    float32_as,
    missing,
    product,
    relative_error,
    tolerance,
)
from mpx.precision.formats import to_tf32

CPU = torch.device("cpu")
ON_CPU = [fmt for fmt in PRODUCT_FORMATS if missing(fmt, CPU) is None]


def test_what_a_cpu_has():
    assert ON_CPU == ["fp64", "fp32", "fp16", "bf16", "int8"]
    assert missing("tf32", CPU) == "CPUs have no TF32"


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        ((7, 0), ["tf32", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"]),
        ((8, 0), ["fp8_e4m3", "fp8_e5m2"]),
        ((8, 9), []),
        ((9, 0), []),
    ],
)
def test_what_a_gpu_has(monkeypatch, capability, lacking):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert [fmt for fmt in PRODUCT_FORMATS if missing(fmt, torch.device("cuda"))] == lacking
    if lacking:
        assert missing("fp8_e4m3", torch.device("cuda")) == (
            "needs compute capability 8.9, this GPU has {}.{}"
        ).format(*capability)


@pytest.mark.parametrize("fmt", [fmt for fmt in ON_CPU if EXACT_INT8 or fmt != "int8"])
def test_error_is_what_the_format_explains(fmt):
    """Of a whole product, by hand: rows are drawn from 96 of 96."""
    made = product(fmt, 96, CPU)
    reference = made.a.double() @ made.b.double()
    by_hand = (made.call().double() - reference).norm() / reference.norm()
    assert relative_error(made) == pytest.approx(float(by_hand), rel=1e-6, abs=1e-16)
    # the result is rounded once: uniform errors within half a unit in the last place
    if fmt in ("fp16", "bf16"):
        assert made.a.dtype.is_floating_point
        assert 0.1 < relative_error(made) / torch.finfo(made.a.dtype).eps < 0.5


@pytest.mark.parametrize("fmt", ON_CPU)
def test_what_is_left_out_is_noticed(fmt):
    """A five-hundredth of the sums, one column of the product, or all of it transposed."""
    made = product(fmt, 512, CPU)
    for wrong in (
        lambda: made.a[:, 1:] @ made.b[1:],
        lambda: made.call().index_fill(1, torch.tensor([7]), 0),
        lambda: made.call().t().contiguous(),
    ):
        with pytest.raises(WrongProductError, match="wrong product: relative error"):
            relative_error(replace(made, call=wrong))


def test_tf32_inside_fp32_would_be_noticed():
    """A product whose operands were rounded to TF32 is no FP32 product, at any size up to a GPU's."""
    made = product("fp32", 64, CPU)
    with pytest.raises(WrongProductError):
        relative_error(replace(made, call=lambda: to_tf32(made.a) @ to_tf32(made.b)))
    assert tolerance("fp32", 8192) < 1e-5


def test_fp32_switch_is_set_and_put_back():
    before = torch.backends.cuda.matmul.fp32_precision
    for fmt, asked in (("fp32", "ieee"), ("tf32", "tf32"), ("fp16", "ieee")):
        with float32_as(fmt):
            assert torch.backends.cuda.matmul.fp32_precision == asked
        assert torch.backends.cuda.matmul.fp32_precision == before
