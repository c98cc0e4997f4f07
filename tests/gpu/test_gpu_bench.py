"""On a CUDA device: every format that it has is measured, in that format, below the vendor's peak."""

import json
from functools import partial

import pytest
import torch

from mpx.bench import conv, gemm
from mpx.bench.__main__ import run
from mpx.bench.work import graphed, multiplied
from mpx.measure.ceilings import ceilings
from mpx.measure.matmul import PRODUCT_FORMATS, float32_as, missing, product, relative_error
from mpx.measure.timing import elapsed, median_time
from mpx.sparsity.kernels import unsupported_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")


def test_every_format_that_the_gpu_has_is_measured(tmp_path, capsys):
    run("formats", "gpu", 4096, str(tmp_path))
    rows = {
        row["format"]: row for row in json.loads((tmp_path / "bench" / "formats.json").read_text())["rows"]
    }
    assert list(rows) == list(PRODUCT_FORMATS)
    for name, row in rows.items():
        assert (row["tflops_per_s"] is None) == (missing(name, GPU) is not None), row["reason"]
        if row["share_of_peak"] is not None:
            assert 0 < row["share_of_peak"] < 1.05, name
    assert torch.cuda.get_device_name() in capsys.readouterr().out


def test_fp32_is_ieee_and_tf32_is_not():
    errors = {}
    for fmt in ("fp32", "tf32"):
        if missing(fmt, GPU) is None:
            with float32_as(fmt):
                errors[fmt] = relative_error(product(fmt, 1024, GPU))
    assert errors["fp32"] < 1e-5
    assert errors.get("tf32", 1) > 10 * errors["fp32"]


@pytest.mark.parametrize("fmt", PRODUCT_FORMATS)
def test_operands_are_in_the_format(fmt):
    if (reason := missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    made = product(fmt, 256, GPU)
    kept = {"int8": torch.int8, "tf32": torch.float32, "fp32": torch.float32}
    assert made.a.is_cuda
    assert made.a.dtype == kept.get(fmt, made.a.dtype)
    assert relative_error(made) <= (0 if fmt == "int8" else 0.01)


@pytest.mark.alone
def test_timing_is_the_devices_own():
    """A sleep of a known number of clock cycles on the device, launched at once."""
    cycles = 20_000_000
    call = lambda: torch.cuda._sleep(cycles)  # noqa: E731
    elapsed(call, GPU, 5)
    timing = median_time(call, GPU, budget_s=0.2)
    assert 20e6 / 4e9 < timing.seconds < 20e6 / 0.2e9
    assert elapsed(call, GPU, 4) == pytest.approx(4 * timing.seconds, rel=0.2)


def rows_of(what, folder, size="auto"):
    run(what, "gpu", size, str(folder))
    return json.loads((folder / "bench" / f"{what}.json").read_text())["rows"]


@pytest.mark.parametrize("fmt", gemm.FORMATS_2OF4)
@pytest.mark.parametrize("search", [False, True])
def test_2of4_products_are_right_eagerly_and_in_a_graph(fmt, search):
    if (reason := unsupported_device(GPU) or missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    made = gemm.sparse_linear(fmt, 512, 256, 384, GPU, search=search)
    assert relative_error(made) <= (0 if fmt == "int8" else 0.02)
    work = graphed(multiplied(made))
    assert work.error(work.call()) <= (0 if fmt == "int8" else 0.02)


def convolution(direction, fmt, layout, algorithm):
    make = partial(conv.work, conv.LAYERS[1], direction, fmt, layout, 64, 128, GPU)
    return conv.in_new_thread(algorithm, make, GPU, fmt)


@pytest.mark.parametrize("direction", conv.DIRECTIONS)
@pytest.mark.parametrize("fmt", conv.MEASURED)
def test_convolutions_are_right_either_way_cudnn_chooses(direction, fmt):
    if (reason := missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    for layout, algorithm in conv.ways(GPU):
        row = convolution(direction, fmt, layout, algorithm)
        assert row["reason"] is None, (layout, algorithm, row["reason"])


def test_tf32_is_seen_in_convolutions():
    """The check in float64 tells the two apart: 10 mantissa bits against 23."""
    if (reason := missing("tf32", GPU)) is not None:
        pytest.skip(reason)
    errors = [
        convolution("forward", fmt, "channels_last", "heuristic")["relative_error"]
        for fmt in ("fp32", "tf32")
    ]
    assert errors[0] < 1e-5
    assert errors[1] > 10 * errors[0]


@pytest.mark.alone
def test_roofline_and_limit_of_a_run_are_those_of_this_gpu(tmp_path, monkeypatch):
    monkeypatch.setitem(gemm.SIZE, "cuda", 2048)
    monkeypatch.setitem(gemm.WIDTHS, "cuda", ())
    run("gemm", "gpu", "auto", str(tmp_path))
    found = ceilings(tmp_path, GPU)
    assert found["fp16"] > found["fp32"]
    assert rows_of("blas", tmp_path, 2048)
