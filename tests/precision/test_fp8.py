"""Linear layers in FP8: what is rounded to which format, scaled how."""

import pytest
import torch
from torch import nn

from mpx.precision.emulate import Emulate
from mpx.precision.formats import FORMATS
from mpx.precision.fp8 import Scaled, linear
from mpx.precision.rounding import to_bf16


def values(x, fmt):
    """What FP8 makes of a tensor, in double precision: scaled so that its largest value is the format's."""
    scale = (FORMATS[fmt].largest / x.abs().max()).float()
    return (x * scale).to(FORMATS[fmt].dtype).double() * scale.reciprocal().double()


def test_by_hand_forward_and_backward():
    torch.manual_seed(0)
    x, w, b, g = torch.randn(32, 16) * 1e-3, torch.randn(8, 16) * 50, torch.randn(8), to_bf16(torch.randn(32, 8))
    xs, ws, bs = (value.clone().requires_grad_() for value in (x, w, b))
    out = linear(xs, ws, bs, native=False)
    out.backward(g)
    x8, w8, g8 = values(x, "fp8_e4m3"), values(w, "fp8_e4m3"), values(g, "fp8_e5m2")
    assert torch.allclose(out.double(), x8 @ w8.T + b.double(), rtol=2e-2, atol=2e-2)
    assert torch.allclose(xs.grad.double(), g8 @ w8, rtol=1e-2, atol=1e-1)
    assert torch.allclose(ws.grad.double(), g8.T @ x8, rtol=1e-2, atol=1e-4)
    assert torch.allclose(bs.grad, g.sum(0), rtol=1e-2, atol=1e-2)
    assert all(torch.equal(to_bf16(value), value) for value in (out.detach(), xs.grad, ws.grad))


@pytest.mark.parametrize("fmt", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_scaling_uses_the_whole_range(fmt, size):
    scaled = Scaled(torch.linspace(-1, 1, 64) * size, fmt, native=False)
    assert scaled.data.abs().max() == FORMATS[fmt].largest
    assert (scaled.data * scaled.inverse).abs().max() == pytest.approx(size, rel=1e-6)


def test_zeros_stay_zero_and_infinity_spreads():
    assert torch.equal(linear(torch.zeros(2, 16), torch.ones(4, 16), native=False), torch.zeros(2, 4))
    assert linear(torch.full((2, 16), float("inf")), torch.ones(4, 16), native=False).isnan().all()


def test_linear_layers_only():
    """Inside attention and elsewhere products stay BF16; state_dict keys and shapes are untouched."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(3, 5, 16)
    with Emulate("fp8"):
        out, product = model(x), x @ x.transpose(1, 2)
    assert out.shape == (3, 5, 4)
    assert torch.equal(product, to_bf16(to_bf16(x) @ to_bf16(x).transpose(1, 2)))
    exact = model(x)
    assert 1e-3 < (out - exact).norm() / exact.norm() < 0.1


def test_frozen_inputs_and_weights_cost_nothing():
    x, w = torch.randn(4, 16), torch.randn(8, 16, requires_grad=True)
    linear(x, w, native=False).sum().backward()
    assert w.grad.shape == (8, 16)
    y = torch.randn(4, 16, requires_grad=True)
    linear(y, w.detach(), native=False).sum().backward()
    assert y.grad.shape == (4, 16)
