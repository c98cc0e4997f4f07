"""Vendor peaks: known figures, dense against sparse, and names that must not be taken for one another."""

import pytest

from mpx.measure.ceilings import CARDS, card

FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("NVIDIA H200", {"fp64": 67, "fp32": 67, "tf32": 494, "bf16": 989, "fp8_e5m2": 1979, "int8": 1979}),
        ("NVIDIA H100 PCIe", {"fp32": 51, "tf32": 378, "bf16": 756, "fp8_e4m3": 1513}),
        (
            "NVIDIA A100-SXM4-80GB",
            {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "bf16": 312, "int8": 624, "fp8_e4m3": None},
        ),
        ("Tesla V100-SXM2-16GB", {"fp32": 15.7, "fp16": 125, "bf16": None, "tf32": None, "int8": None}),
        ("Tesla T4", {"fp32": 8.1, "fp16": 65, "int8": 130}),
        ("NVIDIA L4", {"tf32": 60, "bf16": 121, "fp8_e4m3": 242.5}),
        ("NVIDIA B200", {"tf32": 1100, "bf16": 2250, "fp8_e4m3": 4500}),
    ],
)
def test_known_figures(name, dense):
    for fmt, figure in dense.items():
        assert card(name).dense(fmt) == (figure if figure is None else pytest.approx(figure, rel=2e-3))


@pytest.mark.parametrize("known", CARDS, ids=lambda known: known.names[0])
def test_sparse_is_twice_dense(known):
    """Within the vendor's own rounding: the L40S sheet prints 362.05 beside 733."""
    for fmt in FORMATS:
        if known.sparse(fmt) is not None:
            assert known.sparse(fmt) == pytest.approx(2 * known.dense(fmt), rel=0.015)


@pytest.mark.parametrize("known", CARDS, ids=lambda known: known.names[0])
def test_figures_are_plausible(known):
    """A faster format is listed as faster, which an unhalved sparse figure among dense ones would break."""
    order = [known.dense(fmt) for fmt in ("fp32", "tf32", "fp16", "fp8_e4m3") if known.dense(fmt) is not None]
    assert order == sorted(order)
    if known.dense("tf32") and known.dense("bf16"):
        assert known.dense("bf16") == pytest.approx(2 * known.dense("tf32"), rel=0.03)
    assert known.bandwidth_gb_per_s >= 300
    assert known.source


@pytest.mark.parametrize(
    "name",
    ["NVIDIA L40G", "NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
     "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GH200 480GB", "NVIDIA H20", "AMD Instinct MI300X", "", "cpu"],
)  # fmt: skip
def test_an_unknown_card_has_no_peak(name):
    assert card(name) is None
