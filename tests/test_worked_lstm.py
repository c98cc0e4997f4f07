"""experiments/worked_lstm: mpx's LSTM reproduces the courses' example in FP32, and each format is off as its bits say."""

import csv

import pytest
import torch
from experiment import EXPERIMENTS, script
from torch import nn

from mpx.precision.formats import FORMATS

FOLDER = EXPERIMENTS / "worked_lstm"
run = script("worked_lstm/run.py")


@pytest.fixture(scope="module")
def rows():
    return run.results()


@pytest.fixture(scope="module")
def committed():
    with open(FOLDER / "results.csv", newline="") as file:
        return [{key: value if key == "quantity" else float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_fp32_reproduces_every_printed_figure(rows):
    assert len(rows) == 70
    for row in rows:
        four_decimals = row["quantity"] == "forward state[1]"  # 1.5176
        assert row["fp32"] == pytest.approx(row["printed"], rel=0, abs=5.1e-5 if four_decimals else 2.5e-5), row["quantity"]


def test_fp32_softmax_to_a_millionth(rows):
    found = [row for row in rows if row["quantity"].startswith("softmax")]
    assert len(found) == 8
    for row in found:
        assert row["fp32"] == pytest.approx(row["printed"], rel=1e-6)


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "fp16", "bf16"])
def test_deviation_is_that_of_the_format(rows, fmt):
    """Gates, states and updated weights within one step; gradients within the 15 times that cancellation costs here."""
    step = FORMATS[fmt].epsilon
    for name, beginnings in run.GROUPS.items():
        bound = 20 * step if "δ" in name or "target" in name or "gradients" in name else 2 * step
        assert run.deviation(rows, beginnings, fmt) < bound, name
    if fmt != "fp32":
        assert run.deviation(rows, ("forward out",), fmt) > step / 100  # it really was rounded


def test_groups_of_the_table_hold_every_number(rows):
    beginnings = tuple(start for group in run.GROUPS.values() for start in group)
    assert all(row["quantity"].startswith(beginnings) for row in rows)


@pytest.mark.parametrize("fmt", ["fp32", "tf32", "fp16", "bf16"])
def test_one_call_and_stepwise_calls_agree(rows, fmt):
    """δW = Σ δ·x, δb = Σ δ, δU = δ₁·out₀, and the gates make the state and the output that nn.LSTM returned."""
    got, step = {row["quantity"]: row[fmt] for row in rows}, FORMATS[fmt].epsilon
    for gate in "aifo":
        first, second = got[f"backward d_{gate}[0]"], got[f"backward d_{gate}[1]"]
        for j, (x0, x1) in enumerate([(1.0, 0.5), (2.0, 3.0)], start=1):
            assert got[f"gradients dW {gate}{j}"] == pytest.approx(first * x0 + second * x1, rel=5 * step)
        assert got[f"gradients db {gate}"] == pytest.approx(first + second, rel=5 * step)
        assert got[f"gradients dU {gate}"] == pytest.approx(second * got["forward out[0]"], rel=5 * step)
    for t, before in ((0, 0.0), (1, got["forward state[0]"])):
        a, i, f, o = (got[f"forward {gate}[{t}]"] for gate in "aifo")
        assert got[f"forward state[{t}]"] == pytest.approx(a * i + f * before, rel=2 * step)
        assert got[f"forward out[{t}]"] == pytest.approx(torch.tensor(got[f"forward state[{t}]"]).tanh().item() * o, rel=2 * step)


@pytest.mark.parametrize("fmt", run.STORED)
def test_gates_are_not_rounded(rows, fmt):
    """The kernel keeps them in FP32, and only their products' operands and results have 16 bits."""
    gates = torch.tensor([row[fmt] for row in rows if row["quantity"].startswith(run.GROUPS["gates a, i, f, o"])])
    assert not torch.equal(run.stored(gates, fmt), gates)


def test_both_biases_get_the_same_gradient():
    cell = run.example.lstm(torch.float32)
    cell.bias_hh_l0.requires_grad_(True)
    run.example.loss(cell(run.example.INPUTS[None])[0].flatten()).backward()
    torch.testing.assert_close(cell.bias_hh_l0.grad, cell.bias_ih_l0.grad)


def test_committed_results_are_these(rows, committed):
    assert [row["quantity"] for row in committed] == [row["quantity"] for row in rows]
    for old, new in zip(committed, rows, strict=True):
        assert old["printed"] == new["printed"]
        for fmt in ("fp64", "fp32", "tf32", "fp16", "bf16"):
            assert new[fmt] == pytest.approx(old[fmt], rel=20 * FORMATS[fmt].epsilon, abs=1e-12), old["quantity"]


def test_card_is_made_from_the_committed_results(committed):
    assert (FOLDER / "README.md").read_text() == run.card(committed)


def test_size_of_the_courses_cnn():
    """7×7×3 input, two 3×3×3 filters with stride 2, overlapping 2×2 pooling, layers of 8 and 2: 56 + 72 + 18 parameters."""
    layers = [nn.Conv2d(3, 2, 3, stride=2), nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
    network = nn.Sequential(*layers, nn.Softmax(dim=1))
    x = torch.randn(1, 7, 7, 3).permute(0, 3, 1, 2)  # NHWC as the course writes it
    assert layers[0](x).shape == (1, 2, 3, 3)
    assert layers[1](layers[0](x)).shape == (1, 2, 2, 2)
    torch.testing.assert_close(network(x).sum(), torch.tensor(1.0))
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers if list(layer.parameters())]
    assert sizes == [56, 72, 18]
    assert sum(p.numel() for p in network.parameters()) == 146
