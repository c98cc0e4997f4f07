"""Kernels: checked against float64 before they are timed, timed against a known truth, refused with a
reason.
"""

import pytest
import torch
from torch.nn.functional import conv2d, scaled_dot_product_attention

from mpx.bench import attention, blas, conv, gemm, lstm
from mpx.bench.work import RESULT, Work, against, lacking, ladder, timed
from mpx.measure import matmul
from mpx.measure.matmul import WrongProductError, linear, relative_error
from mpx.precision.formats import to_tf32
from mpx.precision.modes import cpu_has_bf16

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


def test_a_cpu_without_a_formats_instructions_is_not_timed_in_it():
    assert (
        timed(lambda: pytest.fail("made"), CPU, "fp16")["reason"] == "most CPUs have no instructions for FP16"
    )
    assert (lacking("bf16", CPU) is None) == cpu_has_bf16()
    assert lacking("tf32", CPU) == "CPUs have no TF32"


@pytest.mark.parametrize(
    ("largest", "steps", "sizes"), [(64, 6, [32, 64]), (8192, 3, [2048, 4096, 8192]), (96, 6, [48, 96])]
)
def test_sizes_double(largest, steps, sizes):
    assert ladder(largest, steps) == sizes


def test_copy_counts_what_is_read_and_written(measured):
    (row,) = (row for row in measured(blas, 64) if row["routine"] == "copy")
    assert row["gb_per_s"] == pytest.approx(2 * 4 * 64**2 / (row["ms"] / 1e3) / 1e9)


def test_flops_of_a_product_are_two_per_multiply_add(measured):
    for row in measured(gemm, 64):
        if row["ms"]:
            flops = 2 * row["rows"] * row["columns"] * row["inner"]
            assert row["tflops_per_s"] == pytest.approx(flops / (row["ms"] / 1e3) / 1e12)


def test_a_transposed_product_is_wrong():
    made = linear("fp32", 64, 32, 48, CPU)
    with pytest.raises(WrongProductError, match="of shape"):
        relative_error(made, made.call().t())


def test_2of4_operands(monkeypatch):
    """With a dense product in cuSPARSELt's place: the weight has the pattern, and both operands lie as the
    library reads.
    """
    monkeypatch.setattr(gemm, "compress_2of4", lambda weight: weight)
    monkeypatch.setattr(gemm, "fastest_mm_2of4", lambda *operands: {"alg_id": 7})
    monkeypatch.setattr(gemm, "mm_2of4", lambda packed, b, out, alg_id: torch.mm(packed, b))
    made = gemm.sparse_linear("fp16", 64, 32, 48, CPU, search=True)
    assert (made.a.shape, made.b.shape, made.b.stride(0)) == ((32, 48), (48, 64), 1)
    assert int((made.a != 0).view(32, 12, 4).sum(-1).max()) == 2
    assert relative_error(made) <= matmul.tolerance("fp16", 48)


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


def test_share_is_of_the_lower_roof():
    bound = 100.0, {"fp32": 1.0}  # which meet at 10 operations per byte
    low = {"format": "fp32", "flops_per_byte": 0.25, "tflops_per_s": 0.0125}
    assert blas.of_roof(low, *bound) == pytest.approx(0.5)
    assert blas.of_roof(low | {"flops_per_byte": 100.0, "tflops_per_s": 0.9}, *bound) == pytest.approx(0.9)
    assert blas.of_roof(low, None, {"fp32": 1.0}) is None


SMALL = conv.Layer("3×3/2, 8→16", 8, 16, 3, 2, 1)


@pytest.mark.parametrize("layout", conv.LAYOUTS)
@pytest.mark.parametrize("layer", [SMALL, conv.LAYERS[0], conv.LAYERS[3]], ids=lambda layer: layer.name)
@pytest.mark.parametrize("direction", conv.DIRECTIONS)
def test_a_convolution_is_autograds(direction, layer, layout):
    made = conv.work(layer, direction, "fp32", layout, 34, 6, CPU)
    x, weight, grad = (operand.double().requires_grad_() for operand in made.call.args[1:])
    out = conv2d(x, weight, None, layer.stride, layer.kernel // 2)
    operand = x if direction == "input gradient" else weight
    expected = out if direction == "forward" else torch.autograd.grad(out, operand, grad)[0]
    assert made.error(made.call()) < 1e-5
    assert (made.call().double() - expected).norm() < 1e-5 * expected.norm()
    assert made.flops == 2 * out.numel() * weight[0].numel()


def test_tf32_inside_fp32_would_be_noticed():
    made = conv.work(conv.LAYERS[2], "forward", "fp32", "NCHW", 64, 4, CPU)
    x, weight, grad = made.call.args[1:]
    with pytest.raises(WrongProductError):
        made.error(conv.LAYERS[2].call("forward", to_tf32(x), to_tf32(weight), grad))


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


def test_padding_is_attended_to_by_none():
    """The outputs of a sequence whose last quarter is padding are those of its first three quarters."""
    q, k, v = (torch.randn(2, 2, 8, 4) for _ in range(3))
    out = scaled_dot_product_attention(q, k, v, attention._padding((2, 2, 8, 4), CPU))
    expected = scaled_dot_product_attention(q[1:], k[1:, :, :6], v[1:, :, :6])
    torch.testing.assert_close(out[1:], expected)


@pytest.mark.parametrize("direction", attention.DIRECTIONS)
def test_another_mask_would_be_noticed(direction):
    plain, causal = (
        attention.work(direction, mask, "bf16", (2, 2, 32, 64), CPU) for mask in ("none", "causal")
    )
    assert plain.error(plain.call()) < 0.01
    assert causal.flops == plain.flops / 2
    with pytest.raises(WrongProductError):
        plain.error(causal.call())
