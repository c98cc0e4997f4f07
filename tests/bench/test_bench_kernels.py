"""Kernels: checked against float64 before they are timed, timed against a known truth, refused with a
reason.
"""

import pytest
import torch
from torch.nn.functional import conv2d, scaled_dot_product_attention

from mpx.bench import attention, blas, conv, copy, gemm, lstm
from mpx.bench.work import RESULT, Work, against, ladder, timed, too_slow
from mpx.measure import matmul
from mpx.measure.ceilings import Ceilings
from mpx.measure.matmul import WrongProductError, linear, relative_error
from mpx.precision.formats import to_tf32

CPU = torch.device("cpu")
ONE = torch.ones(3)


def slept(clock, seconds, **kwargs):
    return lambda: Work(lambda: clock.sleep(seconds) or ONE, against(lambda: ONE.double(), 1e-6), **kwargs)


def test_rates_are_those_of_a_call_that_sleeps(clock):
    row = timed(slept(clock, 0.01, flops=3e9, moved=2e8), CPU)
    assert tuple(row) == RESULT
    assert (row["ms"], row["tflops_per_s"], row["gb_per_s"]) == (
        pytest.approx(10),
        pytest.approx(0.3),
        pytest.approx(20),
    )
    assert (row["relative_error"], row["reason"]) == (0.0, None)
    assert timed(slept(clock, 0.02, flops=1.0, repeats=10), CPU)["ms"] == pytest.approx(2)


@pytest.mark.parametrize("wrong", [ONE * 1.1, ONE * float("nan"), -ONE])
def test_a_wrong_result_is_not_timed(wrong):
    called = []
    make = lambda: Work(lambda: called.append(1) or wrong, against(lambda: ONE.double(), 1e-3), flops=1.0)  # noqa: E731
    row = timed(make, CPU)
    assert row["reason"].startswith("wrong result: relative error")
    assert row["ms"] is None
    assert len(called) == 1


def test_a_refused_kernel_is_a_reason():
    def refuse():
        raise NotImplementedError("no such\nkernel")

    assert timed(refuse, CPU) == dict.fromkeys(RESULT) | {"reason": "no such kernel"}


def test_what_would_take_too_long_is_left_out(clock):
    takes = iter([0.01, 5.0, 0.01, 5.0] * 2)  # of three probes, two are delayed by other programs
    probe = Work(lambda: clock.sleep(next(takes)), lambda _: 0.0, flops=100.0)
    assert too_slow(probe, 500.0, CPU) is None
    assert too_slow(probe, 10_000.0, CPU).startswith("one call would take about 1")


@pytest.mark.parametrize(
    ("largest", "steps", "sizes"), [(64, 6, [32, 64]), (8192, 3, [2048, 4096, 8192]), (96, 6, [48, 96])]
)
def test_sizes_double(largest, steps, sizes):
    assert ladder(largest, steps) == sizes


def test_copy_counts_what_is_read_and_written(measured):
    for row in measured(copy, 64):
        assert row["gb_per_s"] == pytest.approx(2 * 4 * row["size"] ** 2 / (row["ms"] / 1e3) / 1e9)
        assert row["mib"] == row["size"] ** 2 / 2**18


def test_flops_of_a_product_are_two_per_multiply_add(measured):
    for row in measured(gemm, 64):
        if row["ms"]:
            flops = 2 * row["batch"] * row["rows"] * row["columns"] * row["inner"]
            assert row["tflops_per_s"] == pytest.approx(flops / (row["ms"] / 1e3) / 1e12)


def test_a_transposed_product_is_wrong():
    made = linear("fp32", 64, 32, 48, CPU)
    with pytest.raises(WrongProductError, match="of shape"):
        relative_error(made, made.call().t())


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_2of4_operands(monkeypatch, fmt):
    """With a dense product in cuSPARSELt's place: the weight has the pattern, and both operands lie as the
    library reads.
    """
    monkeypatch.setattr(gemm, "compress_2of4", lambda weight: weight)
    monkeypatch.setattr(gemm, "fastest_mm_2of4", lambda *operands: {"alg_id": 7})
    monkeypatch.setattr(gemm, "mm_2of4", lambda packed, b, out, alg_id: torch.mm(packed, b))
    made = gemm.sparse_linear(fmt, 64, 32, 48, CPU, search=True)
    assert (made.a.shape, made.b.shape, made.b.stride(0)) == ((32, 48), (48, 64), 1)
    assert int((made.a != 0).view(32, 12, 4).sum(-1).max()) == 2
    assert relative_error(made) <= matmul.tolerance(fmt, 48)
    assert gemm.missing_2of4("fp32", CPU) == "cuSPARSELt has no fp32"


@pytest.mark.parametrize(
    ("routine", "flops", "moved"),
    [
        ("axpy", 2 * 64**2, 3 * 64**2 * 4),
        ("gemv", 2 * 64**2, (64**2 + 128) * 4),
        ("gemm", 2 * 64**3, 3 * 64**2 * 4),
    ],
)
def test_cost_of_blas(routine, flops, moved):
    assert blas.cost(routine, 64, 4) == (flops, moved)


@pytest.mark.parametrize(("routine", "operation", "shape"), [("axpy", "add", 1024), ("gemv", "mv", 32)])
def test_a_wrong_routine_is_not_timed(routine, operation, shape, hurried, monkeypatch):
    monkeypatch.setattr(torch, operation, lambda *args, **kwargs: torch.ones(shape))
    reasons = [row["reason"] for row in blas.measure(CPU, 32, lambda part: None) if row["routine"] == routine]
    assert reasons
    assert all(reason.startswith("wrong result") for reason in reasons)


def test_share_is_of_the_lower_roof():
    bound = Ceilings(100.0, {"fp32": 1.0})  # which meet at 10 operations per byte
    low = {"format": "fp32", "flops_per_byte": 0.25, "tflops_per_s": 0.0125}
    assert blas.of_roof(low, bound) == pytest.approx(0.5)
    assert blas.of_roof(low | {"flops_per_byte": 100.0, "tflops_per_s": 0.9}, bound) == pytest.approx(0.9)
    assert blas.of_roof(low, Ceilings(None, {"fp32": 1.0})) is None


@pytest.mark.parametrize(
    ("earlier", "tops", "source"),
    [
        (None, {"fp16": 0.02, "fp32": 0.1}, "seen in this run"),
        (
            Ceilings(9.0, {"fp16": 0.006, "fp32": 0.2}),
            {"fp16": 0.02, "fp32": 0.2},
            "here, or of a faster routine",
        ),
        (Ceilings(9.0, {"fp16": 0.03}), {"fp16": 0.03}, "of what=copy and what=gemm here"),
    ],
)
def test_no_roof_is_below_what_a_routine_reaches(monkeypatch, tmp_path, earlier, tops, source):
    """On many CPUs GEMV is faster than GEMM in FP16."""
    rates = {("gemv", "fp16"): 0.02, ("gemm", "fp16"): 0.006, ("gemv", "fp32"): 0.01, ("gemm", "fp32"): 0.1}
    rows = [{"routine": "copy", "format": "fp32", "bytes": 2**21, "gb_per_s": 90.0, "tflops_per_s": None}]
    rows += [{"routine": name, "format": fmt, "tflops_per_s": rate} for (name, fmt), rate in rates.items()]
    monkeypatch.setattr(blas, "ceilings", lambda *_: earlier)
    bound, said = blas.roofs({"device": "cpu", "folder": tmp_path}, rows)
    assert bound.dense == tops
    assert said.endswith(source)


SMALL = conv.Layer("3×3/2, 8→16", 8, 16, 3, 2, 1)


@pytest.mark.parametrize(
    ("layout", "algorithm"), [("NCHW", "oneDNN"), ("channels_last", "oneDNN"), ("NCHW", conv.IM2COL)]
)
@pytest.mark.parametrize("layer", [SMALL, conv.LAYERS[0], conv.LAYERS[3]], ids=lambda layer: layer.name)
@pytest.mark.parametrize("direction", conv.DIRECTIONS)
def test_a_convolution_is_autograds(direction, layer, layout, algorithm):
    """Of all images, by PyTorch's own convolution in float64."""
    made = conv.work(layer, direction, "fp32", layout, algorithm, 34, 6, CPU)
    given = made.call.args[1]
    x, weight = (operand.double().requires_grad_() for operand in (given.x, given.weight))
    out = conv2d(x, weight, None, given.stride, given.padding)
    operand = x if direction == "input gradient" else weight
    expected = out if direction == "forward" else torch.autograd.grad(out, operand, given.grad.double())[0]
    assert made.error(made.call()) < 1e-5
    assert (made.call().double() - expected).norm() < 1e-5 * expected.norm()
    assert made.flops == 2 * out.numel() * weight[0].numel()


def test_tf32_inside_fp32_would_be_noticed():
    made = conv.work(conv.LAYERS[2], "forward", "fp32", "NCHW", "oneDNN", 64, 4, CPU)
    given = made.call.args[1]
    with pytest.raises(WrongProductError):
        made.error(conv2d(to_tf32(given.x), to_tf32(given.weight), None, given.stride, given.padding))


@pytest.mark.parametrize("direction", lstm.DIRECTIONS)
def test_lstm_is_checked_part_by_part(direction):
    made = lstm.work(direction, "fp32", 16, 4, 8, CPU)
    out = made.call()
    assert made.error(out) < 1e-5
    assert made.flops == (2 if direction == "forward" else 6) * 4 * 8 * 2 * (64 * 16 + 64 * 16)
    parts = [out] if direction == "forward" else out
    for i in (0, len(parts) - 1):
        wrong = [*parts[:i], parts[i] * 1.01, *parts[i + 1 :]]
        with pytest.raises(WrongProductError):
            made.error(wrong)


@pytest.mark.parametrize("mask", attention.MASKS)
def test_attention_reference_is_pytorchs_in_float64(mask):
    q, k, v = (torch.randn(3, 2, 8, 4, dtype=torch.float64) for _ in range(3))
    keep = attention._padding((3, 2, 8, 4), CPU) if mask == "padding" else None
    expected = scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=mask == "causal")
    assert torch.allclose(attention._exactly("forward", mask, q, k, v, v), expected)


@pytest.mark.parametrize("direction", attention.DIRECTIONS)
def test_another_mask_would_be_noticed(direction):
    plain, causal = (
        attention.work(direction, mask, "bf16", (2, 2, 32, 64), CPU) for mask in ("none", "causal")
    )
    assert plain.error(plain.call()) < 0.01
    assert causal.flops == plain.flops / 2
    with pytest.raises(WrongProductError):
        plain.error(causal.call())


def test_why_a_kernel_refuses_is_what_pytorch_says():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at "
        "/pytorch/aten/sdp_utils.cpp:920.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at x)",
        "Flash Attention does not support non-null attn_mask. (Triggered internally at\n x)",
    ]
    assert attention._why(said) == "Flash Attention does not support non-null attn_mask."
    assert attention._why([]) is None
