"""An LSTM that has layers for its input projections computes what nn.LSTM does."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from mpx.deploy.recurrent import Lstm, apart, projections

WAYS = [
    pytest.param(
        layers, both, bias, first, id=f"{layers} layers, {'both ways' if both else 'forwards'}{', bias' * bias}{', batch first' * first}"
    )
    for layers in (1, 2)
    for both in (False, True)
    for bias in (False, True)
    for first in (False, True)
]


@pytest.mark.parametrize(("layers", "both", "bias", "first"), WAYS)
def test_it_computes_the_same(layers, both, bias, first):
    torch.manual_seed(0)
    plain = nn.LSTM(12, 16, layers, bias, first, bidirectional=both)
    x, size = torch.randn(5, 7, 12), 5 if first else 7
    states = tuple(torch.randn(layers * (1 + both), size, 16) for _ in range(2))
    made = Lstm(plain)
    for given in (None, states):
        torch.testing.assert_close(made(x, given), plain(x, given))
    assert {id(parameter) for parameter in made.parameters()} == {id(parameter) for parameter in plain.parameters()}
    expected, found = (torch.autograd.grad(lstm(x)[0].square().sum(), list(plain.parameters())) for lstm in (plain, made))
    torch.testing.assert_close(found, expected)


def test_dropout_lies_between_layers_and_only_in_training():
    plain = nn.LSTM(12, 16, 2, dropout=0.99, batch_first=True)
    x = torch.randn(5, 7, 12)
    made = Lstm(plain)
    assert not torch.allclose(made(x)[0], made(x)[0])
    made.eval()
    plain.eval()
    torch.testing.assert_close(made(x), plain(x))
    torch.testing.assert_close(Lstm(plain)(x), plain(x))


class Net(nn.Module):
    def __init__(self, call, **options):
        super().__init__()
        self.lstm, self.out, self.call = nn.LSTM(12, 16, batch_first=True, **options), nn.Linear(16, 4), call

    def forward(self, x):
        return self.out(self.call(self.lstm, x))


def packed(lstm, x):
    return lstm(pack_padded_sequence(x, [7] * len(x), batch_first=True))[1][0][0]


CASES = [
    (Net(lambda lstm, x: lstm(x)[0].mean(1)), ["lstm.weight_ih_l0"]),
    (Net(packed), []),
    (Net(lambda lstm, x: torch.stack([lstm(row)[0].mean(0) for row in x])), []),  # without a batch
    (Net(lambda lstm, x: lstm(x)[0].mean(1) + lstm.weight_ih_l0[:16].mean(1)), []),  # its weights are read elsewhere
    (Net(lambda lstm, x: lstm(x)[0].mean(1).repeat(1, 2), proj_size=8), []),
    (nn.LSTM(12, 16, batch_first=True), []),
]


@pytest.mark.parametrize(("model", "expected"), CASES, ids=["one tensor", "packed", "no batch", "weights read", "proj_size", "whole model"])
def test_which_projections_can_be_layers(model, expected):
    x, model = torch.randn(2, 7, 12), model.eval().requires_grad_(False)
    assert projections(model, x) == expected
    assert (apart(model, expected) is model) == (expected == [])


def test_a_compiler_sees_the_steps_as_one_operation():
    model, x = CASES[0][0].eval().requires_grad_(False), torch.randn(3, 7, 12)
    made = apart(model, ["lstm.weight_ih_l0"])
    graphs = []

    def look(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    torch.testing.assert_close(torch.compile(made, backend=look, fullgraph=True)(x), model(x))
    assert [sum("lstm_steps" in target for target in graph) for graph in graphs] == [1]
    assert not any("sigmoid" in target for target in graphs[0])
