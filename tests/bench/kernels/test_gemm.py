"""Copies and matrix products on the CPU: which are measured, what they count, and that a wrong one would be noticed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from int8_products import EXACT_INT8

from mpx.bench.kernels import copy, gemm, sparse_gemm
from mpx.measure import matmul
from mpx.measure.matmul import WrongProductError, batched, linear, relative_error

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows(measured):
    return measured(gemm, 64)


def test_copy_counts_what_is_read_and_written(measured):
    rows = measured(copy, 256)
    assert [row["size"] for row in rows] == [32, 64, 128, 256]
    assert all(tuple(row) == copy.COLUMNS for row in rows)
    for row in rows:
        assert row["gb_per_s"] == pytest.approx(2 * 4 * row["size"] ** 2 / (row["ms"] / 1e3) / 1e9)
        assert row["mib"] == row["size"] ** 2 / 2**18


def test_every_format_is_there_by_torch_and_numpy(rows):
    assert all(tuple(row) == gemm.COLUMNS for row in rows)
    measured = {(row["library"], row["format"]) for row in rows if row["ms"]}
    assert {("torch", "fp32"), ("torch", "bf16"), ("numpy", "fp32"), ("numpy", "fp64")} <= measured
    assert (("torch", "int8") in measured) == EXACT_INT8
    assert {row["format"] for row in rows if row["reason"] == "CPUs have no TF32"} == {"tf32"}
    assert {row["shape"] for row in rows} == {"square", "batched"}


def test_flops_are_two_per_multiply_add(rows):
    for row in rows:
        if row["ms"]:
            flops = 2 * row["batch"] * row["rows"] * row["columns"] * row["inner"]
            assert row["tflops_per_s"] == pytest.approx(flops / (row["ms"] / 1e3) / 1e12)


def test_default_shapes_are_berts(monkeypatch):
    kinds = [(kind, shape) for kind, shape, *_ in gemm._products("torch", "bf16", CPU, 64, all_shapes=True)]
    assert ("linear", (512, 2048, 512)) in kinds
    assert not any(kind == "linear" for kind, *_ in gemm._products("torch", "bf16", CPU, 64, all_shapes=False))


def test_a_slow_format_stops_growing(monkeypatch):
    """A product that takes 0.1 s at 32³ would take 0.8 s at 64³, and is not tried there."""
    slow = {"ms": 100.0, "tflops_per_s": 2 * 32**3 / 0.1 / 1e12, "gb_per_s": None, "relative_error": 0.0, "samples": 5, "reason": None}
    monkeypatch.setattr(gemm, "timed", lambda *_: dict(slow))
    monkeypatch.setattr(gemm, "FORMATS", ("fp16",))
    monkeypatch.setattr(gemm, "_products", lambda library, fmt, device, largest, all_shapes: [
        ("square", (n, n, n), 1, None) for n in (32, 64)] if library == "torch" else [])  # fmt: skip
    small, large = gemm.measure(CPU, 64, lambda part: None)
    assert (small["reason"], large["reason"]) == (None, "one call would take about 0.8 s")


@pytest.mark.parametrize("fmt", ["fp32", "bf16", *["int8"] * EXACT_INT8])
def test_linear_product_is_that_of_a_linear_layer(fmt):
    made = linear(fmt, 64, 32, 48, CPU)
    assert (made.a.shape, made.b.shape, made.call().shape) == ((64, 48), (48, 32), (64, 32))
    by_hand = made.a.double() @ made.b.double()
    assert relative_error(made) == pytest.approx(float((made.call().double() - by_hand).norm() / by_hand.norm()), rel=1e-6, abs=1e-16)


def test_batched_product_is_checked_as_a_whole():
    made = batched("fp32", 8, 16, CPU)
    assert torch.equal(made.call()[3], made.a[3] @ made.b[3]) or relative_error(made) < 1e-6
    with pytest.raises(WrongProductError):
        relative_error(replace(made, call=lambda: made.call().flip(0)))
    with pytest.raises(RuntimeError, match="no batched product in int8"):
        batched("int8", 8, 16, CPU)


def test_a_transposed_result_is_wrong():
    made = linear("fp32", 64, 32, 48, CPU)
    with pytest.raises(WrongProductError, match="of shape"):
        relative_error(made, made.call().t())


def test_why_there_is_no_2of4_product():
    assert sparse_gemm.missing("fp32", CPU) == "cuSPARSELt has no fp32"
    assert sparse_gemm.missing("fp16", CPU) == "needs a CUDA device"


@pytest.mark.parametrize("renamed", [True, False])
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "int8"])
def test_2of4_operands(monkeypatch, fmt, renamed):
    """With a dense product in cuSPARSELt's place: the weight has the pattern, and both operands lie as the library reads them.

    renamed: the search by the name that PyTorch asks for now, where there is one.
    """
    searched = []
    mm_search = lambda packed, b, bias, alpha, out, transpose: searched.append(1) or (7, 1, -1, 9)  # noqa: E731
    monkeypatch.setattr(torch._C, "_cusparselt", SimpleNamespace(**({"mm_search": mm_search} if renamed else {})), raising=False)
    monkeypatch.setattr(torch, "_cslt_compress", lambda weight: weight)
    monkeypatch.setattr(torch, "_cslt_sparse_mm_search", lambda packed, b, **options: searched.append(1) or 7)
    product_of = {"int8": lambda a, b: (a.double() @ b.double()).to(torch.int32)}.get(fmt, torch.mm)

    def sparse_mm(packed, b, bias, out_dtype, transpose_result, alg_id, **split):
        assert (bias, transpose_result) == (None, False)
        assert (alg_id, split) == (7, {"split_k": 1, "split_k_mode": -1} if renamed else {})
        return product_of(packed, b)

    monkeypatch.setattr(torch, "_cslt_sparse_mm", sparse_mm)
    made = sparse_gemm.sparse_linear(fmt, 64, 32, 48, CPU, search=True)
    assert searched == [1]
    assert (made.a.shape, made.b.shape, made.b.stride(0)) == ((32, 48), (48, 64), 1)
    assert int((made.a != 0).view(32, 12, 4).sum(-1).max()) == 2
    assert relative_error(made) <= matmul.tolerance(fmt, 48)
