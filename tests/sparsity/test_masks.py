"""What is pruned and why not, and that pruned weights stay exactly zero under every optimizer."""

import pytest
import torch
from torch import nn

from mpx.errors import UserError
from mpx.sparsity.layers import weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import is_2of4
from mpx.sparsity.recipe import prune_step


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 16, num_layers=2)
        self.attention = nn.MultiheadAttention(16, 2)
        self.conv = nn.Conv1d(16, 8, 3)
        self.odd = nn.Linear(6, 8)
        self.small = nn.Linear(16, 4)
        self.decoder = nn.Linear(16, 32)
        self.decoder.weight = self.embedding.weight


def reasons(**kwargs):
    return {w.name: w.reason for w in weights(Net(), **({"shape_rule": "hardware", "skip": ()} | kwargs))}


def test_layers_and_reasons():
    found = reasons()
    pruned = [name for name, reason in found.items() if reason is None]
    assert pruned == [
        "lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.weight_ih_l1", "lstm.weight_hh_l1",
        "attention.in_proj_weight", "attention.out_proj.weight", "conv.weight",
    ]  # fmt: skip
    assert found["odd.weight"] == "6 inputs, not a multiple of 4"
    assert found["small.weight"].startswith("4×16 is no sparse Tensor Core shape")
    assert found["decoder.weight"] == "shared with an embedding"


def test_any_shape_and_skipped_names():
    found = reasons(shape_rule="any", skip=("lstm.*", "conv"))
    assert found["small.weight"] is None
    assert found["lstm.weight_ih_l0"] == found["conv.weight"] == "in sparsity.skip"


OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.1),
    lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_pruned_values_gradients_and_state_stay_zero(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
    optimizer = make(model.parameters())
    masks = Masks(weights(model, shape_rule="hardware", skip=()))
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        if step == 2:
            masks.prune([optimizer])
        if masks.active:
            masks.mask_gradients()
        optimizer.step()
    assert masks.verify() == []
    for weight in masks.pruned:
        away = ~masks.masks[weight.name]
        assert (weight.parameter[away] == 0).all()
        assert (weight.parameter.grad[away] == 0).all()
        for value in optimizer.state[weight.parameter].values():
            if isinstance(value, torch.Tensor) and value.shape == away.shape:
                assert (value[away] == 0).all()


def test_infinite_gradients_are_masked_to_zero_not_nan():
    model = nn.Linear(16, 8)
    masks = Masks(weights(model, shape_rule="hardware", skip=()))
    masks.prune([])
    model.weight.grad = torch.full_like(model.weight, float("inf"))
    masks.mask_gradients()
    assert (model.weight.grad[~masks.masks["weight"]] == 0).all()


def test_verify_names_the_broken_weight():
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(16, 8))
    masks = Masks(weights(model, shape_rule="hardware", skip=()))
    masks.prune([])
    with torch.no_grad():
        model[1].weight.add_(1)
    assert masks.verify() == ["1.weight"]
    assert is_2of4(model[0].weight)


def test_masks_survive_a_checkpoint():
    model = nn.Linear(16, 8)
    first = Masks(weights(model, shape_rule="hardware", skip=()))
    first.prune([])
    second = Masks(weights(model, shape_rule="hardware", skip=()))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.masks["weight"], first.masks["weight"])
    assert second.coverage() == first.coverage()


def test_nothing_to_prune_is_a_failure():
    with pytest.raises(UserError, match=r"finds nothing to prune in this model \(weight: 6 inputs"):
        Masks(weights(nn.Linear(6, 8), shape_rule="any", skip=())).prune([])


@pytest.mark.parametrize(("start", "total", "step"), [(0.5, 400, 200), (0.0, 10, 0), (0.99, 3, 2), (0.5, 1, 0)])
def test_pruning_leaves_a_step_for_fine_tuning(start, total, step):
    assert prune_step(start, total) == step
