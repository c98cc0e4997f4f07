"""BLAS: what a routine costs, and where it lies beneath the roofs."""

import pytest
import torch

from mpx.bench.kernels import blas
from mpx.bench.show.blas import roofs, share
from mpx.measure.ceilings import Ceilings
from mpx.render.plots.picture import NothingToDraw, picture
from mpx.render.plots.roofline import Point, roofline_figure

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows(measured):
    return measured(blas, 64)


def test_every_routine_is_measured_in_its_formats(rows):
    assert all(tuple(row) == blas.COLUMNS for row in rows)
    measured = {(row["routine"], row["format"]) for row in rows if row["ms"]}
    assert measured >= {(routine, fmt) for routine in blas.ROUTINES for fmt in ("fp64", "fp32", "bf16")} | {("copy", "fp32")}
    assert [row["reason"] for row in rows if row["format"] == "tf32"] == ["CPUs have no TF32"] * 2


@pytest.mark.parametrize(
    ("routine", "flops", "moved"),
    [("axpy", 2 * 64**2, 3 * 64**2 * 4), ("gemv", 2 * 64**2, (64**2 + 128) * 4), ("gemm", 2 * 64**3, 3 * 64**2 * 4)],
)
def test_cost(rows, routine, flops, moved):
    assert blas.cost(routine, 64, 4) == (flops, moved)
    (row,) = (row for row in rows if (row["routine"], row["format"], row["size"]) == (routine, "fp32", 64))
    assert row["flops_per_byte"] == flops / moved
    assert row["gb_per_s"] == pytest.approx(moved / (row["ms"] / 1e3) / 1e9)


@pytest.mark.parametrize("routine", ["axpy", "gemv"])
def test_a_wrong_routine_is_not_timed(routine, hurried, monkeypatch):
    monkeypatch.setattr(
        torch, {"axpy": "add", "gemv": "mv"}[routine], lambda *args, **kwargs: torch.ones(32 if routine == "gemv" else 1024)
    )
    reasons = [row["reason"] for row in blas.measure(CPU, 32, lambda part: None) if row["routine"] == routine]
    assert reasons
    assert all(reason.startswith("wrong result") for reason in reasons)


def test_share_is_of_the_lower_roof():
    bound = Ceilings(100.0, {"fp32": 1.0})  # which meet at 10 operations per byte
    low = {"format": "fp32", "flops_per_byte": 0.25, "tflops_per_s": 0.0125}
    assert share(low, bound) == pytest.approx(0.5)
    assert share(low | {"flops_per_byte": 100.0, "tflops_per_s": 0.9}, bound) == pytest.approx(0.9)
    assert share(low, Ceilings(None, {"fp32": 1.0})) is None


def test_roofs_without_earlier_results_are_those_of_this_run(rows, tmp_path):
    found, of_whom = roofs({"folder": tmp_path / "bench", "device": "cpu"}, rows)
    assert of_whom == "seen in this run"
    assert found.gb_per_s == next(row["gb_per_s"] for row in rows if row["routine"] == "copy")
    assert found.dense["fp32"] == max(row["tflops_per_s"] for row in rows if (row["routine"], row["format"]) == ("gemm", "fp32"))


def test_roofline_bends_where_both_limits_meet():
    figure = roofline_figure([Point("gemm", "fp32", 50.0, 0.9), Point("axpy", "fp32", 0.2, 0.01)], 100.0, {"fp32": 1.0})
    (roof,) = (line for line in figure.axes[0].lines if len(line.get_xdata()) > 1)
    x, y = roof.get_xdata(), roof.get_ydata()
    assert y[x < 9] == pytest.approx(x[x < 9] * 0.1)
    assert y[x > 11] == pytest.approx(1.0)


def test_roofline_without_bandwidth_says_so():
    made = picture("x", "x", "x", "x", lambda: roofline_figure([Point("gemm", "fp32", 5.0, 0.9)], None, {"fp32": 1.0}))
    assert "was not measured" in made.reason
    with pytest.raises(NothingToDraw):
        roofline_figure([], 100.0, {})
