"""On a CUDA device: every format that it has is measured, in that format, below the vendor's peak."""

import json

import pytest
import torch

from mpx.bench import run
from mpx.measure.kernels import sparse_gemm
from mpx.measure.kernels.work import Work, graphed
from mpx.measure.matmul import NAMES, WrongProductError, float32_as, linear, missing, product, relative_error
from mpx.measure.timing import elapsed, median_time

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")


def test_every_format_that_the_gpu_has_is_measured(tmp_path, capsys):
    run("formats", "gpu", 4096, str(tmp_path))
    rows = {row["format"]: row for row in json.loads((tmp_path / "bench" / "formats.json").read_text())["rows"]}
    assert list(rows) == list(NAMES)
    for name, row in rows.items():
        assert (row["tflops_per_s"] is None) == (missing(name, GPU) is not None), row["tflops_per_s_reason"]
        if row["share_of_peak"] is not None:
            assert 0.05 < row["share_of_peak"] < 1.05, name
    assert torch.cuda.get_device_name() in capsys.readouterr().out


def test_fp32_is_ieee_and_tf32_is_not():
    errors = {}
    for fmt in ("fp32", "tf32"):
        if missing(fmt, GPU) is None:
            with float32_as(fmt):
                errors[fmt] = relative_error(product(fmt, 1024, GPU))
    assert errors["fp32"] < 1e-5
    assert errors.get("tf32", 1) > 10 * errors["fp32"]


@pytest.mark.parametrize("fmt", NAMES)
def test_operands_are_in_the_format(fmt):
    if (reason := missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    made = product(fmt, 256, GPU)
    kept = {"int8": torch.int8, "tf32": torch.float32, "fp32": torch.float32}
    assert made.a.is_cuda
    assert made.a.dtype == kept.get(fmt, made.a.dtype)
    assert relative_error(made) <= (0 if fmt == "int8" else 0.01)


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


def test_copy_stays_below_the_vendors_bandwidth(tmp_path):
    largest = rows_of("copy", tmp_path)[-1]
    assert largest["reason"] is None
    if largest["share_of_peak"] is not None:
        assert 0.3 < largest["share_of_peak"] < 1.0


def test_products_of_every_kind_are_measured(tmp_path):
    rows = rows_of("gemm", tmp_path, 2048)
    measured = {(row["device"], row["library"], row["pattern"], row["how"]) for row in rows if row["ms"]}
    assert {("cuda", "torch", "dense", "eager"), ("cuda", "torch", "dense", "graph"), ("cpu", "numpy", "dense", "eager")} <= measured
    for row in rows:
        assert row["ms"] or row["reason"], row
        if row["share_of_peak"] and row["device"] == "cuda":
            assert row["share_of_peak"] < 1.05, row
    if sparse_gemm.missing("fp16", GPU) is None:
        assert ("cuda", "cuSPARSELt", "2of4", "graph") in measured


@pytest.mark.parametrize("fmt", sparse_gemm.FORMATS_2OF4)
@pytest.mark.parametrize("search", [False, True])
def test_2of4_products_are_right_eagerly_and_in_a_graph(fmt, search):
    if (reason := sparse_gemm.missing(fmt, GPU) or missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    made = sparse_gemm.sparse_linear(fmt, 512, 256, 384, GPU, search=search)
    assert relative_error(made) <= (0 if fmt == "int8" else 0.02)
    work = graphed(Work(made.call, lambda out: relative_error(made, out)))
    assert work.error(work.call()) <= (0 if fmt == "int8" else 0.02)


def test_a_replayed_graph_computes_again():
    made = linear("bf16", 64, 64, 64, GPU)
    work = graphed(Work(made.call, lambda out: relative_error(made, out)))
    out = work.call()
    out.zero_()
    with pytest.raises(WrongProductError):
        work.error(out)
    assert work.error(work.call()) < 0.01
