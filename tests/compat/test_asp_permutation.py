"""Permutation inside ASP: it keeps the function and more magnitude, guesses an input, and says in one line where it cannot."""

import copy

import pytest
import torch
from helpers_for_asp import ConvNet
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mpx.compat import ASP, amp
from mpx.compat.asp.guessing import guess
from mpx.errors import UserError
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


def test_prune_trained_model_can_leave_it_out():
    model, optimizer = convolutions(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    stem = model.stem.weight.detach().clone()
    ASP.prune_trained_model(model, optimizer, allow_permutation=False)
    assert torch.equal(model.stem.weight, stem)
    ASP.init_model_for_pruning(model := convolutions(), verbosity=0)
    ASP.set_permutation_saving_params(allow_permutation=False, save_permutation_graph=True)
    ASP.compute_sparse_masks()
    assert torch.equal(model.stem.weight, stem)


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


@pytest.mark.parametrize("wrapped", [False, True])
def test_copies_of_the_weights_are_permuted_where_asked_for(wrapped, capsys):
    model = convolutions()
    outer = nn.DataParallel(model) if wrapped else model
    average = AveragedModel(outer, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    average.update_parameters(outer)
    teacher, saved, wrapped_saved = copy.deepcopy(model), copy.deepcopy(model.state_dict()), copy.deepcopy(average.state_dict())
    x, untouched = torch.randn(2, 3, 8, 8), copy.deepcopy(model)
    expected = [one.eval()(x) for one in (teacher, average)]
    ASP.init_model_for_pruning(outer, verbosity=2, allow_recompute_mask=True)
    ASP.compute_sparse_masks()
    assert "Copies of the weights made before, such as averages, need ASP.permute_copies(copy)" in capsys.readouterr().out
    ASP.restore_pruned_weights()
    ASP.permute_copies(teacher, average, saved, wrapped_saved)
    for one, wanted in zip((teacher, average), expected, strict=True):
        torch.testing.assert_close(one(x), wanted)
    for state in (teacher.state_dict(), saved, {name.rpartition("module.")[2]: value for name, value in wrapped_saved.items()}):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not torch.equal(model.stem.weight, untouched.stem.weight)
    average.update_parameters(outer)
    torch.testing.assert_close(average(x), expected[0])


def test_what_is_no_copy_is_refused():
    model = convolutions()
    ASP.init_model_for_pruning(model, verbosity=0)
    with pytest.raises(UserError, match=r"ASP.permute_copies before ASP.compute_sparse_masks"):
        ASP.permute_copies(copy.deepcopy(model))
    ASP.compute_sparse_masks()
    other = ConvNet()
    other.conv = nn.Conv2d(24, 32, 3)
    before = copy.deepcopy(other.state_dict())
    for wrong, message in (
        (nn.Linear(8, 8), "this Linear has none of the weights that the permutation moved"),
        (other, "which is not the model's"),
    ):
        with pytest.raises(UserError, match=message):
            ASP.permute_copies(wrong)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    ASP.prune_trained_model(model, torch.optim.SGD(model.parameters(), lr=0.1), allow_permutation=False)
    ASP.permute_copies(other)  # nothing was permuted
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("o2", [True, False])
def test_an_optimizer_that_the_permutation_did_not_know(o2, stepped, capsys):
    """Given after compute_sparse_masks, its moments of before are those of other channels, which a line says. A new one has none."""
    model = convolutions()
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, enabled=o2, opt_level="O2", verbosity=0)
    if stepped:
        with amp.scale_loss(model(torch.randn(2, 3, 8, 8)).square().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    ASP.init_model_for_pruning(model, verbosity=1)
    ASP.compute_sparse_masks()
    for known in (False, True):
        ASP.init_optimizer_for_pruning(optimizer)
        said = "[ASP] Warning: this Adam has stepped before compute_sparse_masks permuted the channels" in capsys.readouterr().out
        assert said is (stepped and not known)


def test_optimizer_state_that_cannot_move_along_keeps_the_order(capsys):
    model = convolutions()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x = torch.randn(2, 3, 8, 8)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    stem = model.stem.weight.detach().clone()
    ASP.prune_trained_model(model, optimizer)
    assert "[ASP] Going on without permutation: LBFGS's state 'd' of stem.weight" in capsys.readouterr().out
    assert torch.equal(model.stem.weight, stem)


def test_attention_behind_a_linear_layer_is_permuted_as_a_sequence(capsys):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Linear(16, 32), encoder, nn.Linear(32, 16))
    ASP.init_model_for_pruning(model, verbosity=2)
    ASP.compute_sparse_masks()
    printed = capsys.readouterr().out
    assert "[ASP] Example input guessed for the permutation: (2, 16, 16)\n" in printed
    assert "the inputs of 9 of 10 weights; not of 0::weight (its input channels stay: it comes from the model's input). 2:4 ke" in printed


class Positions(nn.Module):
    """The head is defined first, and the size is that of a parameter."""

    def __init__(self):
        super().__init__()
        self.head, self.conv = nn.Linear(16, 8), nn.Conv2d(3, 16, 3, padding=1)
        self.offset = nn.Parameter(torch.randn(16, 9, 9))

    def forward(self, x):
        return self.head((self.conv(x) + self.offset).mean((2, 3)))


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.image_size, self.conv, self.head = (24, 40), nn.Conv2d(3, 2, 3, padding=1), nn.Linear(2 * 24 * 40, 8)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


class Translation(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(20, 16), nn.Embedding(30, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, source, target, mask=None):
        return self.transformer(self.source(source), self.target(target), tgt_mask=mask)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 5 * 5, 16)), (2, 3, 7, 7)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 94, 94])), (2, 3, 96, 96)),
        (nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 18, 16)), (2, 3, 20)),
        (nn.Sequential(nn.Conv3d(3, 4, 1), nn.LayerNorm([4, 8, 8, 8])), (2, 3, 8, 8, 8)),
        (Positions(), (2, 3, 9, 9)),
        (Wide(), (2, 3, 24, 40)),
        (nn.Sequential(nn.EmbeddingBag(20, 16), nn.Linear(16, 16)), (2, 16)),
        (Translation(), [(2, 16), (2, 16)]),
        (nn.Transformer(16, 2, 1, 1, 32, batch_first=True), [(2, 16, 16), (2, 16, 16)]),
    ],
)
def test_guesses_of_fixed_sizes_and_several_sequences(model, shape):
    found = guess(model)
    assert (found.shape if isinstance(found, torch.Tensor) else [one.shape for one in found]) == shape


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
