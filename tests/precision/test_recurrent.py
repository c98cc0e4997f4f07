"""Emulated GRUs, plain recurrent layers and cells: PyTorch's own in the limit of no rounding, and in FP16 what FP16 can hold."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from mpx.precision.emulate import Emulate
from mpx.precision.ops import inside
from mpx.precision.recurrent import gru_cell, gru_step, layers, lstm_cell, relu_step, tanh_step
from mpx.precision.rounding import to_fp16

OPTIONS = [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}]
LAYERS = {"gru": (nn.GRU, {}, gru_step), "tanh": (nn.RNN, {}, tanh_step), "relu": (nn.RNN, {"nonlinearity": "relu"}, relu_step)}
CELLS = {"gru": (nn.GRUCell, torch.gru_cell, gru_cell), "lstm": (nn.LSTMCell, torch.lstm_cell, lstm_cell)}


def gradients(out, leaves):
    out = out if isinstance(out, tuple) else (out,)
    return torch.autograd.grad(sum(part.float().square().sum() for part in out), leaves)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_pytorchs_do(name, options):
    """Stored in FP32, nothing is rounded."""
    torch.manual_seed(0)
    make, own, step = LAYERS[name]
    layer, x = make(6, 8, **own, **options), torch.randn(4, 5, 6, requires_grad=True)
    directions, batch = 1 + layer.bidirectional, x.shape[0 if layer.batch_first else 1]
    h = torch.randn(layer.num_layers * directions, batch, 8, requires_grad=True)
    expected = layer(x, h)
    how = (layer.bias, layer.num_layers, 0.0, True, layer.bidirectional, layer.batch_first)
    got = layers(step, "fp16", x, h, layer._flat_weights, *how)
    leaves = [x, h, *layer.parameters()]
    for a, b in zip((*got, *gradients(got, leaves)), (*expected, *gradients(expected, leaves)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cells_compute_what_pytorchs_do(name, bias):
    torch.manual_seed(0)
    make, theirs, ours = CELLS[name]
    cell = make(6, 8, bias=bias)
    leaves = [torch.randn(5, size, requires_grad=True) for size in (6, 8, 8)]
    state = (leaves[1], leaves[2]) if name == "lstm" else leaves[1]
    leaves = [*leaves[: 3 if name == "lstm" else 2], *cell.parameters()]
    expected, got = theirs(leaves[0], state, *cell.parameters()), ours("fp16", leaves[0], state, *cell.parameters())
    every = [(value if isinstance(value, tuple) else (value,)) for value in (got, expected)]
    for a, b in zip((*every[0], *gradients(got, leaves)), (*every[1], *gradients(expected, leaves)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


MADE = {
    "gru": lambda: nn.GRU(6, 8, 2, bidirectional=True, dropout=0.2),
    "rnn": lambda: nn.RNN(6, 8, nonlinearity="relu"),
    "lstm with projections": lambda: nn.LSTM(6, 8, proj_size=4),
    "gru cell": lambda: nn.GRUCell(6, 8),
    "lstm cell": lambda: nn.LSTMCell(6, 8),
    "rnn cell": lambda: nn.RNNCell(6, 8),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", MADE)
def test_in_fp16(name):
    """State, gates and gradients are what FP16 holds, and near FP32's."""
    torch.manual_seed(0)
    layer = MADE[name]().eval()
    x = torch.randn(5, 6, requires_grad=True) if "cell" in name else torch.randn(4, 5, 6, requires_grad=True)
    leaves = [x, *layer.parameters()]
    exact = _first(layer(x))
    expected = gradients(exact, leaves)
    with Emulate("fp16"):
        out = _first(layer(x))
        got = gradients(out, leaves)
    assert out.dtype == torch.float16
    assert not torch.equal(out.float(), exact)
    for a, b in zip((out, *got), (exact, *expected), strict=True):
        assert torch.equal(to_fp16(a.float()), a.float())
        assert (a.float() - b).norm() <= 0.01 * b.norm()


def _first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("make", [nn.GRU, nn.LSTM, nn.RNN])
def test_packed_sequences(make):
    torch.manual_seed(0)
    layer, x = make(6, 8), torch.randn(4, 3, 6)
    packed = pack_padded_sequence(x, torch.tensor([4, 2, 1]))
    exact = layer(packed)[0].data
    with Emulate("fp16"):
        out = layer(packed)[0].data
        out.sum().backward()
    assert out.dtype == torch.float16
    assert torch.allclose(out.float(), exact, atol=3e-3)
    assert torch.equal(to_fp16(layer.weight_hh_l0.grad), layer.weight_hh_l0.grad)


@pytest.mark.parametrize("make", [nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_bias_gradients_overflow(make):
    """A sum over batch and steps that FP16 does not hold, of gradients that it does."""
    layer = make(2, 3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    x = torch.zeros((64, 2) if isinstance(layer, nn.RNNCellBase) else (1, 64, 2))
    for scale, finite in ((1000.0, True), (8000.0, False)):
        layer.zero_grad()
        with Emulate("fp16"):
            out = _first(layer(x))
            (out * scale).sum().backward()
        biases = torch.cat([parameter.grad for name, parameter in layer.named_parameters() if "bias" in name])
        assert bool(biases.isfinite().all()) == finite


def test_steps_are_parts_of_one_operation():
    """Seen as an RNN, forward and backward, and no more when it has ended."""
    layer, x, seen = nn.GRU(2, 3), torch.randn(2, 1, 2), []

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mm.default:
                seen.append(inside())
            return func(*args, **(kwargs or {}))

    with Seen(), Emulate("fp16"):
        layer(x)[0].sum().backward()
    assert len(seen) > 4
    assert set(seen) == {("rnn", "fp16")}
    assert inside() is None


CELL_TYPES = (nn.GRUCell, nn.LSTMCell, nn.RNNCell)
LAYER_TYPES = (nn.GRU, nn.LSTM, nn.RNN)


@pytest.mark.parametrize(
    ("make", "packed"), [*((make, False) for make in (*CELL_TYPES, *LAYER_TYPES)), *((make, True) for make in LAYER_TYPES)]
)
def test_a_recurrent_layer_takes_the_output_of_another_layer(make, packed):
    """An FP16 tensor meets FP32 weights, which PyTorch allows only under autocast."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), make(4, 3)
    with Emulate("fp16"):
        x = first(torch.randn(2, 4) if make in CELL_TYPES else torch.randn(3, 2, 4))
        assert x.dtype == torch.float16
        out = second(pack_padded_sequence(x, torch.tensor([3, 2])) if packed else x)
        out = next(leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        assert out.dtype == torch.float16
        out.float().sum().backward()
    assert not torch.is_autocast_enabled("ipu")
    assert first.weight.grad.norm() > 0


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("make", [nn.GRU, nn.RNN, nn.LSTM])
def test_a_checkpointed_layer_has_the_same_gradients(make, reentrant):
    torch.manual_seed(0)
    layer, x = make(6, 8, num_layers=2), torch.randn(4, 5, 6, requires_grad=True)
    leaves = [x, *layer.parameters()]

    def found(call):
        for leaf in leaves:
            leaf.grad = None
        with Emulate("fp16"):
            out = call(lambda x: layer(x)[0], x)
        with Emulate("fp16"):
            out.float().square().sum().backward()
        return [leaf.grad for leaf in leaves]

    plain = found(lambda function, x: function(x))
    again = found(lambda function, x: checkpoint(function, x, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
