"""This machine's limits: read from its own results alone, and named by whose they are."""

import json

import pytest
import torch

from mpx.measure.ceilings import CARDS, card, ceilings, limit, mfu
from mpx.measure.environment import environment

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PRODUCTS = [
    {"device": "cpu", "format": "fp32", "pattern": "dense", "tflops_per_s": 0.1},
    {"device": "cpu", "format": "fp32", "pattern": "dense", "tflops_per_s": 0.2},
    {"device": "cpu", "format": "bf16", "pattern": "dense", "tflops_per_s": 1.0},
    {"device": "cpu", "format": "fp16", "pattern": "dense", "tflops_per_s": None},
    {"device": "cuda", "format": "fp32", "pattern": "dense", "tflops_per_s": 50.0},
]


@pytest.fixture
def measured(tmp_path):
    def leave(what, rows, **changes):
        record = {
            "device": "cpu",
            "size": "auto",
            "exclusive": None,
            "environment": environment(),
            "rows": rows,
        }
        for key, value in changes.items():
            (record if key in record else record["environment"])[key] = value
        (tmp_path / "bench").mkdir(exist_ok=True)
        (tmp_path / "bench" / f"{what}.json").write_text(json.dumps(record))
        return tmp_path

    return leave


def test_the_fastest_dense_product(measured):
    folder = measured(
        "gemm", [*PRODUCTS, {"device": "cpu", "format": "bf16", "pattern": "2of4", "tflops_per_s": 1.5}]
    )
    assert ceilings(folder, CPU) == {"fp32": 0.2, "bf16": 1.0}


def test_nothing_measured(tmp_path):
    assert ceilings(tmp_path, CPU) == {}


@pytest.mark.parametrize(
    "other",
    [{"torch": "2.0"}, {"cpu": "a"}, {"threads": 999}, {"exclusive": False}, {"size": 64}],
)
def test_results_of_another_or_a_busy_machine_or_of_small_sizes_do_not_count(measured, other):
    assert ceilings(measured("gemm", PRODUCTS, **other), CPU) == {}


@pytest.mark.parametrize("text", ['{"rows": [', "[]", ""])
def test_a_broken_file_does_not_count(measured, text):
    folder = measured("gemm", PRODUCTS)
    (folder / "bench" / "gemm.json").write_text(text)
    assert ceilings(folder, CPU) == {}


def test_a_mix_of_formats_has_the_limit_of_doing_each_at_its_own(measured):
    folder = measured("gemm", PRODUCTS)
    assert limit({"fp32": 7, "bf16": 0}, CPU, folder)[0] == 0.2
    most, words = limit({"fp32": 100, "bf16": 300}, CPU, folder)  # 500 + 300 parts of time for 400 of work
    assert most == pytest.approx(0.5)
    assert words == "fp32 0.2 TFLOP/s for 25%, bf16 1 TFLOP/s for 75% (measured here by mpx.bench)"


def test_share_of_the_limit(measured):
    folder = measured("gemm", PRODUCTS)
    assert mfu(0.05, {"fp32": 1}, CPU, folder, count=1) == {
        "mfu": 0.25,
        "mfu_reference": "fp32 0.2 TFLOP/s (measured here by mpx.bench)",
    }
    assert mfu(0.05, {"fp32": 1}, CPU, folder, count=2)["mfu"] == 0.125
    assert mfu(None, {"fp32": 1}, CPU, folder, count=1) == {
        "mfu": None,
        "mfu_reason": "no throughput was measured",
    }
    assert mfu(0.05, {"fp16": 1}, CPU, folder, count=1)["mfu_reason"].startswith(
        "no vendor's peak known for fp16 on this CPU, none measured"
    )
    assert mfu(None, {}, CPU, folder, count=1)["mfu_reason"] == "no operation of the model has a FLOP count"


def test_a_known_card_has_the_vendors_peak_and_an_unknown_one_has_none(monkeypatch, tmp_path):
    name = "NVIDIA H200"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    most, words = limit({"fp16": 1}, GPU, tmp_path)
    assert most == pytest.approx(989.5)
    assert words == "fp16 989.5 TFLOP/s (vendor's dense peak, NVIDIA H200 datasheet, SXM)"
    name = "Card of 2030"
    most, words = limit({"fp16": 1}, GPU, tmp_path)
    assert most is None
    assert "Card of 2030" in words


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
