"""Masks in force: pruned weights, gradients and optimizer state stay exactly zero under every optimizer, and
what breaks that is found.
"""

import pytest
import torch
from torch import nn

from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import NEVER_ZERO, Masks
from mpx.sparsity.patterns import NofM, Unstructured, is_2of4
from mpx.sparsity.tiles import Tiles


def masks_of(model, pattern=NofM(2, 4), **kwargs):  # noqa: B008
    return Masks(weights(model, pattern, Rules()), pattern, **kwargs)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, weight_decay=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


@pytest.mark.parametrize(
    "pattern", [NofM(2, 4), NofM(1, 8), Tiles(), Unstructured(0.2)], ids=lambda p: p.name
)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_pruned_values_gradients_and_state_stay_zero(make, pattern):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    optimizer = make([{"params": [p]} for p in model.parameters()])  # several groups
    masks = masks_of(model, pattern)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().sum().backward()
        if step == 2:
            masks.prune([optimizer])
        if masks.active:
            masks.mask_gradients()
        optimizer.step()
    assert masks.verify([optimizer]) == []
    for weight in masks.pruned:
        away = ~masks.masks[weight.name]
        assert away.any()
        assert not (weight.parameter[away] != 0).any()
        assert not torch.signbit(weight.parameter[away]).any()
        assert not (weight.parameter.grad[away] != 0).any()
        for key, value in optimizer.state[weight.parameter].items():
            if isinstance(value, torch.Tensor) and value.shape == away.shape and key not in NEVER_ZERO:
                assert not (value[away] != 0).any()


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_infinite_gradients_are_masked_to_zero_not_nan(bad):
    model = nn.Linear(16, 8)
    masks = masks_of(model)
    masks.prune([])
    model.weight.grad = torch.full_like(model.weight, bad)
    masks.mask_gradients()
    assert (model.weight.grad[~masks.masks["weight"]] == 0).all()


def test_verify_names_the_broken_weights():
    """The third is 2:4, but not where its mask says."""
    model = nn.Sequential(*(nn.Linear(16, 8) for _ in range(3)))
    masks = masks_of(model)
    masks.prune([])
    with torch.no_grad():
        model[1].weight.add_(1)
        model[2].weight.copy_(model[2].weight.roll(1, dims=0))
    assert masks.verify() == ["1.weight", "2.weight"]
    assert is_2of4(model[0].weight)
    assert is_2of4(model[2].weight)


def test_verify_names_the_broken_state():
    model = nn.Linear(16, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    masks = masks_of(model)
    masks.prune([optimizer])
    model(torch.randn(2, 16)).sum().backward()
    gradient = model.weight.grad.clone()
    masks.mask_gradients()
    optimizer.step()
    assert masks.verify([optimizer]) == []
    optimizer.state[model.weight]["exp_avg"].add_(gradient)
    assert masks.verify([optimizer]) == ["weight (exp_avg)"]


def test_masks_survive_a_checkpoint():
    model = nn.Linear(16, 8)
    first = masks_of(model, remember=True)
    first.prune([])
    second = masks_of(model, remember=True)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.masks["weight"], first.masks["weight"])
    assert torch.equal(second.stash["weight"], first.stash["weight"])
    assert (second.kept, second.complete) == (first.kept, True)


@pytest.mark.parametrize(
    "change", [lambda masks: masks.pop("1.weight"), lambda masks: masks.update(other=masks["0.weight"])]
)
def test_masks_of_other_layers_are_refused(change):
    def model():
        return nn.Sequential(nn.Linear(16, 8), nn.Linear(16, 8))

    first = masks_of(model())
    first.prune([])
    state = first.state_dict()
    change(state["masks"])
    with pytest.raises(ValueError, match=r"its mask of (1\.weight|other) does not fit this model"):
        masks_of(model()).load_state_dict(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_remembered_values_come_back_exactly(dtype):
    model = nn.Linear(16, 8, dtype=dtype)
    dense = model.weight.detach().clone()
    masks = masks_of(model, remember=True)
    masks.prune([])
    assert is_2of4(model.weight)
    with torch.no_grad():
        masks.restore()
    assert torch.equal(model.weight, dense)
