"""Permutation inside ASP: it keeps the function and more magnitude, guesses an input, and says in one line where it cannot."""

import copy

import pytest
import torch
from helpers_for_asp import ConvNet
from torch import nn

from mpx.compat import ASP
from mpx.compat.asp.permuting import guess
from mpx.sparsity.patterns import is_2of4


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, tokens):
        return self.down(torch.relu(self.up(self.embedding(tokens)))).mean(1)


def convolutions(seed=0):
    torch.manual_seed(seed)
    return ConvNet()


def kept(model, **arguments):
    """Σ|w| of the pruned weights after the pruning."""
    pruning = ASP.init_model_for_pruning(model, verbosity=1, **arguments)
    ASP.compute_sparse_masks()
    assert all(is_2of4(place.parameter) for place in pruning.places)
    return sum(float(place.parameter.detach().abs().sum()) for place in pruning.places)


@pytest.mark.parametrize("make", [ConvNet, Tagger])
def test_keeps_the_function_and_more_magnitude(make, capsys):
    torch.manual_seed(0)
    model, plain = (one := make()), copy.deepcopy(one)
    x = guess(model)
    state, training = torch.get_rng_state(), model.training
    expected = model.eval()(x)
    model.train()
    pruning = ASP.init_model_for_pruning(model, verbosity=1, allow_recompute_mask=True)
    ASP.compute_sparse_masks()
    more = sum(float(place.parameter.detach().abs().sum()) for place in pruning.places)
    assert model.training == training
    assert torch.equal(torch.get_rng_state(), state)
    assert "without" not in capsys.readouterr().out
    ASP.restore_pruned_weights()
    torch.testing.assert_close(model.eval()(x), expected)
    assert more > kept(plain, allow_permutation=False) * 1.005


def test_optimizer_state_moves_along():
    model = convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"].copy_(parameter)
    ASP.prune_trained_model(model, optimizer)
    for parameter in model.parameters():
        assert torch.equal(optimizer.state[parameter]["momentum_buffer"], parameter)


def test_prune_trained_model_can_leave_it_out():
    model, optimizer = convolutions(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    stem = model.stem.weight.detach().clone()
    ASP.prune_trained_model(model, optimizer, allow_permutation=False)
    assert torch.equal(model.stem.weight, stem)
    ASP.init_model_for_pruning(model := convolutions(), verbosity=0)
    ASP.set_permutation_saving_params(allow_permutation=False, save_permutation_graph=True)
    ASP.compute_sparse_masks()
    assert torch.equal(model.stem.weight, stem)


def test_wrapped_model(capsys):
    kept(nn.DataParallel(convolutions()))
    assert "without" not in capsys.readouterr().out


class Branching(nn.Sequential):
    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x, y):
        return self.second(torch.relu(self.first(x + y)))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Branching(nn.Linear(16, 32), nn.Linear(32, 16)), "cannot trace"),
        (TwoInputs(), "example_input"),
        (nn.Linear(16, 8), "no layer has channels that may move (::weight: its input channels stay: it comes from the model's input)"),
    ],
)
def test_goes_on_without_it_and_says_so_in_one_line(model, reason, capsys):
    kept(model)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert len(lines) == 1
    assert printed.err == ""
    assert lines[0].startswith("[ASP] Going on without permutation: ")
    assert reason in lines[0]


def test_given_example_input(capsys):
    torch.manual_seed(0)
    model = TwoInputs()
    plain = copy.deepcopy(model)
    more = kept(model, example_input=(torch.randn(2, 16), torch.randn(2, 16)))
    assert capsys.readouterr().out == ""
    assert more > kept(plain, allow_permutation=False) * 1.005


def test_recomputed_masks_permute_the_whole_values():
    model = convolutions()
    x = torch.randn(2, 3, 8, 8)
    expected = model.eval()(x)
    ASP.init_model_for_pruning(model, verbosity=0, allow_recompute_mask=True)
    for _ in range(2):
        ASP.compute_sparse_masks()
    ASP.restore_pruned_weights()
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv1d(4, 16, 3), nn.Flatten()),
        nn.Sequential(nn.Conv3d(4, 16, 3), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(784, 16)),
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 28 * 28, 16)),
        nn.LSTM(16, 16),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 1, enable_nested_tensor=False),
        nn.Sequential(nn.Linear(16, 16, dtype=torch.bfloat16)),
    ],
)
def test_guesses(model):
    assert guess(model) is not None


def test_no_guess_for_unknown_or_empty_models():
    assert guess(nn.Sequential()) is None
    assert guess(nn.Sequential(nn.PReLU())) is None
