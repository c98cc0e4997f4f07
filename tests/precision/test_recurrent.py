"""Emulated recurrent layers and cells: PyTorch's own in the limit of no rounding, and in FP16 what FP16 can
hold.
"""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from mpx.precision.emulate import Emulate
from mpx.precision.formats import ROUND
from mpx.precision.recurrent import LAYERS, layers

OPTIONS = [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}]
MADE = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **how: nn.RNN(*sizes, nonlinearity="relu", **how),
}
FUNCTIONS = {"lstm": torch.lstm, "gru": torch.gru, "tanh": torch.rnn_tanh, "relu": torch.rnn_relu}


def tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def gradients(out, leaves):
    return torch.autograd.grad(sum(part.float().square().sum() for part in tensors(out)), leaves)


def assert_equal_with_gradients(got, expected, leaves):
    every = ((*tensors(out), *gradients(out, leaves)) for out in (got, expected))
    for a, b in zip(*every, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", MADE)
def test_layers_compute_what_pytorchs_do(name, options):
    """Stored in FP32, nothing is rounded."""
    torch.manual_seed(0)
    layer, x = MADE[name](6, 8, **options), torch.randn(4, 5, 6, requires_grad=True)
    shape = (layer.num_layers * (1 + layer.bidirectional), x.shape[0 if layer.batch_first else 1], 8)
    states = [torch.randn(shape, requires_grad=True) for _ in range(2 if name == "lstm" else 1)]
    hx = tuple(states) if name == "lstm" else states[0]
    how = (layer.bias, layer.num_layers, 0.0, True, layer.bidirectional, layer.batch_first)
    got = layers(LAYERS[FUNCTIONS[name]], "fp16", x, hx, layer._flat_weights, *how)
    assert_equal_with_gradients(got, layer(x, hx), [x, *states, *layer.parameters()])


ROUNDED = {
    "lstm": lambda: nn.LSTM(6, 8, 2, bidirectional=True),
    "gru": lambda: nn.GRU(6, 8, 2, bidirectional=True, dropout=0.2),
    "rnn": lambda: nn.RNN(6, 8, nonlinearity="relu"),
    "lstm with projections": lambda: nn.LSTM(6, 8, proj_size=4),
    "lstm cell": lambda: nn.LSTMCell(6, 8),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("fmt", ["fp16", "tf32"])
@pytest.mark.parametrize("name", ROUNDED)
def test_values_are_the_formats_and_near_fp32s(name, fmt):
    """State, gates and gradients are what FP16 holds. TF32 rounds nothing but operands."""
    torch.manual_seed(0)
    layer = ROUNDED[name]().eval()
    x = torch.randn(5, 6, requires_grad=True) if "cell" in name else torch.randn(4, 5, 6, requires_grad=True)
    leaves = [x, *layer.parameters()]
    exact = tensors(layer(x))[0]
    expected = gradients(exact, leaves)
    with Emulate(fmt):
        out = tensors(layer(x))[0]
        got = gradients(out, leaves)
    assert out.dtype == (torch.float16 if fmt == "fp16" else torch.float32)
    assert not torch.equal(out.float(), exact)
    for a, b in zip((out, *got), (exact, *expected), strict=True):
        assert fmt == "tf32" or torch.equal(ROUND[fmt](a.float()), a.float())
        assert (a.float() - b).norm() <= 0.01 * b.norm()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_layer_has_the_same_gradients(reentrant):
    torch.manual_seed(0)
    layer, x = nn.LSTM(6, 8, num_layers=2), torch.randn(4, 5, 6, requires_grad=True)
    leaves = [x, *layer.parameters()]

    def computed(call):
        for leaf in leaves:
            leaf.grad = None
        with Emulate("fp16"):
            out = call(lambda x: layer(x)[0], x)
        with Emulate("fp16"):
            out.float().square().sum().backward()
        return [leaf.grad for leaf in leaves]

    plain = computed(lambda function, x: function(x))
    again = computed(lambda function, x: checkpoint(function, x, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
