"""On a CUDA device: every format that it has is measured, in that format, below the vendor's peak."""

import json

import pytest
import torch

from mpx.bench.__main__ import run
from mpx.bench.kernels import attention, conv, conv_plans, gemm, lstm, sparse_gemm
from mpx.bench.kernels import work as work_module
from mpx.bench.kernels.work import Work, graphed
from mpx.measure import timing as timing_module
from mpx.measure.ceilings import ceilings
from mpx.measure.matmul import PRODUCT_FORMATS, WrongProductError, float32_as, linear, missing, product, relative_error
from mpx.measure.timing import elapsed, median_time

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GPU = torch.device("cuda")


def test_every_format_that_the_gpu_has_is_measured(tmp_path, capsys):
    run("formats", "gpu", 4096, str(tmp_path))
    rows = {row["format"]: row for row in json.loads((tmp_path / "bench" / "formats.json").read_text())["rows"]}
    assert list(rows) == list(PRODUCT_FORMATS)
    for name, row in rows.items():
        assert (row["tflops_per_s"] is None) == (missing(name, GPU) is not None), row["tflops_per_s_reason"]
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


@pytest.mark.alone
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


@pytest.mark.parametrize("direction", conv.DIRECTIONS)
@pytest.mark.parametrize("fmt", conv.MEASURED)
def test_convolutions_are_right_either_way_cudnn_chooses_and_by_products(direction, fmt):
    if (reason := missing(fmt, GPU)) is not None:
        pytest.skip(reason)
    for layout in conv.LAYOUTS:
        for algorithm in ("heuristic", "autotuned"):
            row = conv._alone(conv._one, conv.LAYERS[1], direction, fmt, layout, algorithm, 64, GPU)
            assert row["reason"] is None, (layout, algorithm, row["reason"])
            assert row["workspace_mib"] >= 0
    row = conv._alone(conv._one, conv.LAYERS[1], direction, fmt, "NCHW", "im2col + GEMM", 64, GPU)
    assert row["reason"] is None, row["reason"]


def test_tf32_is_seen_in_convolutions():
    """The check in float64 tells the two apart: 10 mantissa bits against 23."""
    if (reason := missing("tf32", GPU)) is not None:
        pytest.skip(reason)
    errors = [
        conv._alone(conv._one, conv.LAYERS[1], "forward", fmt, "channels_last", "heuristic", 64, GPU)["relative_error"]
        for fmt in ("fp32", "tf32")
    ]
    assert errors[0] < 1e-5
    assert errors[1] > 10 * errors[0]


@pytest.fixture
def plans_of(monkeypatch):
    """cuDNN's plans for 3×3 convolutions, checked as ever and timed in a hurry."""
    if (reason := conv_plans.absent(GPU)) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(work_module, "WARMUP_S", 1e-4)
    monkeypatch.setattr(timing_module, "SAMPLE_S", 1e-3)

    def found(direction, fmt):
        if (reason := missing(fmt, GPU)) is not None:
            pytest.skip(reason)
        return list(conv_plans.measure(conv.LAYERS[1], direction, fmt, 64, 16, GPU))

    return found


@pytest.mark.parametrize("direction", conv.DIRECTIONS)
@pytest.mark.parametrize("fmt", conv.MEASURED)
def test_each_algorithm_of_cudnn_is_right_in_its_format(plans_of, direction, fmt):
    rows = plans_of(direction, fmt)
    right = [row for row in rows if row["ms"]]
    assert right, [row["reason"] for row in rows]
    assert len({row["plan"] for row in rows}) == len(rows)
    assert all(bool(row["ms"]) != bool(row["reason"]) and row["algorithm"].startswith("engine ") for row in rows)
    assert all(row["workspace_mib"] >= 0 and row["tflops_per_s"] > 0 for row in right)
    errors = [row["relative_error"] for row in right]
    if fmt == "fp32":
        assert max(errors) < 1e-5
    elif fmt == "tf32":
        assert max(errors) > 1e-4


def test_the_first_plan_of_cudnn_is_not_the_only_one_that_is_right(plans_of):
    rows = plans_of("forward", "fp16")
    assert rows[0]["ms"], rows[0]["reason"]
    assert len({row["algorithm"] for row in rows if row["ms"]}) > 1


def test_workspace_is_what_a_call_takes_beyond_its_result():
    def call():  # where a larger block is free, it is taken whole
        held = torch.empty(3 * 2**20, dtype=torch.uint8, device=GPU)
        return held[:16].clone()

    larger = torch.empty(3 * 2**20 + 2**18, dtype=torch.uint8, device=GPU)
    del larger
    assert conv.workspace(call, GPU) == 3 * 2**20


@pytest.mark.parametrize("module", [lstm, attention])
def test_every_way_over_sequences_is_measured_or_says_why(module):
    rows = list(module.measure(GPU, 256, lambda part: None))
    assert all(bool(row["ms"]) != bool(row["reason"]) for row in rows)
    assert {(row["direction"], row["format"]) for row in rows if row["ms"]} >= {(way, "fp16") for way in module.DIRECTIONS}
    assert not [row for row in rows if (row["reason"] or "").startswith("wrong")]


def test_triton_masks_are_the_references_and_every_way_is_measured(tmp_path):
    rows = rows_of("triton", tmp_path, 1024)
    measured = [row for row in rows if not row["compressed"]]
    assert [row for row in measured if row["reason"]] == []
    assert {row["way"] for row in measured} == {"PyTorch", "torch.compile", "Triton"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 4), (37, 52), (4096, 1024)])
def test_triton_masks_are_those_of_any_weight(dtype, shape):
    from mpx.bench.kernels.mask_and_prune import mask_and_prune
    from mpx.sparsity.patterns import mask_2of4

    for weight in (torch.randn(shape), torch.randint(-2, 3, shape).float(), torch.zeros(shape)):
        weight = weight.to(GPU, dtype)
        mask, pruned = mask_and_prune(weight)
        assert torch.equal(mask, mask_2of4(weight))
        assert torch.equal(pruned, weight * mask)


@pytest.mark.alone
def test_roofline_and_limit_of_a_run_are_those_of_this_gpu(tmp_path, monkeypatch):
    monkeypatch.setitem(gemm.SIZE, "cuda", 2048)
    monkeypatch.setattr(gemm, "BERT", ())
    run("copy", "gpu", "auto", str(tmp_path))
    run("gemm", "gpu", "auto", str(tmp_path))
    found = ceilings(tmp_path, GPU)
    assert found.gb_per_s > 50
    assert found.dense["fp16"] > found.dense["fp32"]
    assert rows_of("blas", tmp_path, 2048)
    assert ceilings(tmp_path, torch.device("cpu")) is not None
