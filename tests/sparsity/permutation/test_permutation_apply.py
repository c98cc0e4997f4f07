"""What moves along with the parameters, what is left as it was, and that nothing is left half done."""

import copy

import pytest
import torch
from helpers_for_permutation import assert_same_function, permuted, permuted_names, shaken
from torch import nn

from mpx.sparsity.permutation.apply import Permutation
from mpx.sparsity.permutation.channels import Axis


def mlp() -> nn.Module:
    return shaken(
        nn.Sequential(
            nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)
        )
    )


def steps(model, optimizer, count):
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(6, 16, generator=generator)).pow(2).mean().backward()
        optimizer.step()


def convolutions() -> nn.Module:
    layers = (
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(32, 16, 1),
        nn.Flatten(),
    )
    return shaken(nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers[:2], nn.Upsample(4), *layers[2:]))


@pytest.mark.parametrize("model", [mlp, convolutions])
@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
], ids=["SGD", "AdamW"])  # fmt: skip
def test_training_goes_on_as_if_nothing_had_happened(model, make):
    """Optimizer state moves along: the losses after it are those of a copy that was not permuted."""
    model = model()
    optimizer = make(model.parameters())
    steps(model, optimizer, 3)
    plain = copy.deepcopy(model)
    plain_optimizer = make(plain.parameters())
    plain_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    report = permuted(model, torch.randn(2, 16), optimizer=optimizer)
    assert len(permuted_names(report)) == 2
    for one, its_optimizer in ((model, optimizer), (plain, plain_optimizer)):
        steps(one, its_optimizer, 6)
    x = torch.randn(4, 16)
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=1e-5)


def test_a_state_of_another_shape_leaves_the_model_as_it_is():
    model = mlp()
    optimizer = torch.optim.Adafactor(model.parameters())  # has means over rows and columns
    steps(model, optimizer, 1)
    before = copy.deepcopy(model.state_dict())
    report = permuted(model, torch.randn(2, 16), optimizer=optimizer)
    assert report.reason == "Adafactor's state 'row_var' of 0.weight, of shape (32, 1), cannot move along"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_moving_averages_follow_by_name():
    model = mlp()
    average = copy.deepcopy(model)
    report = permuted(model, torch.randn(2, 16))
    report.permutation.apply(average.state_dict())
    assert all(
        torch.equal(one, other)
        for one, other in zip(model.state_dict().values(), average.state_dict().values(), strict=True)
    )


def test_the_same_seed_gives_the_same_model():
    first = mlp()
    second = copy.deepcopy(first)
    for model in (first, second):
        permuted(model, torch.randn(2, 16), seed=4)
    assert all(
        torch.equal(one, other)
        for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_no_group_loses():
    """Each group keeps at least what it kept, so layers without siblings and the whole do too."""
    report = assert_same_function(mlp(), torch.randn(2, 16))
    assert all(layer["kept_after"] >= layer["kept_before"] for layer in report.layers)
    assert report.kept_after > report.kept_before


def test_a_wrong_permutation_is_put_back(monkeypatch):
    """As if a rule had been wrong: one axis is reordered that nothing else follows."""
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr(
        Permutation,
        "add",
        lambda self, *_: self.indices.update({Axis("3.weight", 1): torch.arange(32).flip(0)}),
    )
    report = permuted(model, torch.randn(2, 16))
    assert "everything was put back" in report.reason
    assert report.kept_after == report.kept_before
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
