"""half_function, float_function and promote_function, with FP16 emulated and with a device's own autocast."""

import sys

import pytest
import torch
from torch import nn

from mpx.compat import amp
from mpx.compat.amp import casts, frontend

SMALL = 2.0**-13  # its square is below FP16's smallest number


class Calls(nn.Module):
    """Its forward is a given function of the input and an FP32 weight."""

    def __init__(self, body):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1), SMALL))
        self.body = body

    def forward(self, x):
        return self.body(x, self.weight)


def run(body, level="O1", x=None):
    return amp.initialize(
        Calls(body), opt_level=level, verbosity=0, cast_model_type=False if level == "O0" else None
    )(torch.full((1, 1), SMALL) if x is None else x)


@pytest.fixture(params=["emulated", "native"])
def how(request, monkeypatch):
    """native: a CPU's FP16 autocast in the place of a GPU's."""
    emulate(monkeypatch, request.param == "emulated")
    return request.param


def emulate(monkeypatch, yes):
    for module in (casts, frontend, sys.modules[amp.scale_loss.__module__]):
        monkeypatch.setattr(module, "emulated", lambda device: yes)


def product(x, w):
    return x @ w


def test_float_function(how):
    body = amp.float_function(product)
    assert run(body).item() == SMALL**2
    # from an FP16 tensor
    assert run(lambda x, w: body((x @ torch.ones(1, 1)).relu(), w=w)).item() == SMALL**2


def test_half_function(how):
    seen = []

    @amp.half_function
    def body(x, w):
        seen.append(x.dtype)
        return x * w[0]

    assert run(body).item() == 0
    assert run(lambda x, w: body(x, w) + 1).dtype == torch.float32
    assert (
        run(body, "O0").item()
        == body(torch.full((1, 1), SMALL), torch.full((1, 1), SMALL)).item()
        == SMALL**2
    )
    assert seen == [torch.float16] * 2 + [torch.float32] * 2


def test_promote_function(how):
    seen = []

    @amp.promote_function
    def body(xs, w):
        seen.append({x.dtype for x in [*xs, w]})
        return w

    run(lambda x, w: body([x, x.half()], w))
    run(lambda x, w: body([x.half()], w.half()))
    run(lambda x, w: body([x.half()], w), "O0")
    assert seen == [{torch.float32}, {torch.float16}, {torch.float16, torch.float32}]


def test_sigmoid_before_binary_cross_entropy(how, monkeypatch):
    """The reason why most scripts register a function. PyTorch's autocast refuses this loss inside."""
    monkeypatch.setattr(torch, "sigmoid", torch.sigmoid)
    monkeypatch.setattr(nn.functional, "binary_cross_entropy", nn.functional.binary_cross_entropy)
    amp.register_float_function(torch, "sigmoid")
    amp.register_float_function(nn.functional, "binary_cross_entropy")
    out = run(lambda x, w: nn.functional.binary_cross_entropy(torch.sigmoid(x @ w), torch.ones(1, 1)))
    assert out.item() == pytest.approx(0.6931, abs=1e-4)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_compiles_without_graph_break(monkeypatch, level):
    emulate(monkeypatch, False)
    model = amp.initialize(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), opt_level=level, verbosity=0)
    x = torch.randn(4, 8)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
