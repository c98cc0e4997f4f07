"""What ASP prunes, and that its masks are apex's."""

import itertools

import pytest
import torch
from helpers_for_asp import perceptron, pruned
from torch import nn

from mpx.compat import ASP
from mpx.compat.asp.calculators import NAMED
from mpx.sparsity.patterns import is_2of4
from mpx.sparsity.tiles import Tiles


class MyLinear(nn.Linear):
    pass


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 16))
        self.vector = nn.Parameter(torch.randn(16))


def names(model, **arguments):
    return [place.name for place in ASP.init_model_for_pruning(model, **({"verbosity": 0} | arguments)).places]


def test_eligibility():
    layers = nn.ModuleDict(
        {
            "subclass": MyLinear(16, 8),
            "few_outputs": nn.Linear(16, 4),
            "few_inputs": nn.Linear(8, 16),
            "conv1d": nn.Conv1d(16, 8, 3),
            "conv3d": nn.Conv3d(32, 8, 3),
            "grouped": nn.Conv2d(32, 32, 3, groups=4),
            "stem": nn.Conv2d(3, 16, 3, dtype=torch.bfloat16),
            "attention": nn.MultiheadAttention(16, 2),
            "lstm": nn.LSTM(16, 16),
            "odd": Odd(),
            "frozen": nn.Linear(16, 16).requires_grad_(False),
        }
    )
    expected = ["subclass", "conv1d", "conv3d", "attention::in_proj_weight", "attention.out_proj"]
    expected = [name if "::" in name else f"{name}::weight" for name in expected]
    assert names(layers) == expected
    assert names(layers, custom_layer_dict={Odd: ["matrix", "vector"]}) == [*expected, "odd::matrix"]
    assert names(layers) == expected  # apex's default whitelist would have grown
    assert names(layers, allowed_layer_names=["conv1d", "subclass"]) == expected[:2]
    assert names(layers, disallowed_layer_names=["subclass"]) == expected[1:]
    assert names(layers, whitelist=[nn.Conv3d]) == expected[2:3]
    assert names(layers, whitelist=[MyLinear]) == expected[:1]
    pruned(layers)
    assert all(is_2of4(place.parameter) for place in ASP.of().places)


def test_shared_weight_is_pruned_once():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    model[1].weight = model[0].weight
    assert names(model) == ["0::weight"]


def apex_mask(weight):
    """apex's create_mask and mn_1d_best, on the CPU."""
    patterns = torch.tensor(list(set(itertools.permutations([1.0, 1.0, 0.0, 0.0]))))
    order = (2, 3, 0, 1)[: weight.dim()] if weight.dim() == 4 else (0, 2, 1) if weight.dim() == 3 else (0, 1)
    t = weight.detach().float().permute(order).contiguous()
    best = torch.argmax(torch.matmul(t.view(-1, 4).abs(), patterns.t()), dim=1)
    back = torch.tensor(order).argsort().tolist()
    return patterns[best].view(t.shape).permute(back).bool()


@pytest.mark.parametrize("shape", [(64, 64), (16, 32, 5), (32, 32, 3, 3)])
@pytest.mark.parametrize("kind", ["normal", "ties", "swamped", "half", "channels_last"])
def test_masks_are_apexs(shape, kind):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    if kind == "ties":
        weight = weight.round()
    elif kind == "swamped":  # sums of a large value with small ones round to equal ones
        weight = weight * 10.0 ** torch.randint(-8, 1, shape)
    elif kind == "half":
        weight = weight.bfloat16()
    elif kind == "channels_last" and len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    layer = {2: nn.Linear(64, 64), 3: nn.Conv1d(32, 16, 5), 4: nn.Conv2d(32, 32, 3)}[len(shape)]
    layer.weight = nn.Parameter(weight.clone())
    model = nn.Sequential(layer)
    mask = pruned(model).masks["0::weight"]
    assert torch.equal(mask, apex_mask(weight))
    assert torch.equal(layer.weight, torch.where(mask, weight, 0))


def test_infinite_and_nan_weights_are_among_the_two():
    groups = torch.cartesian_prod(*[torch.tensor([0.0, 5.0, 3.0, torch.nan, -torch.inf])] * 4)
    beyond, mask = ~groups.isfinite(), NAMED["m4n2_1d"](groups)
    assert (mask.sum(1) == 2).all()
    assert torch.equal((mask & beyond).sum(1), beyond.sum(1).clamp(max=2))
    for name in ("m4n2_2d_best", "m4n2_2d_greedy"):
        mask = NAMED[name](groups)[: len(groups) // 4 * 4]
        assert (mask.sum(1) <= 2).all()
        assert (mask.view(-1, 4, 4).sum(1) <= 2).all()
        assert name == "m4n2_2d_greedy" or mask.view(-1, 16).sum(1).eq(8).all()


@pytest.mark.parametrize("name", ["m4n2_2d_best", "m4n2_2d_greedy"])
def test_2d_masks(name):
    model = nn.Sequential(nn.Linear(32, 16), nn.Conv2d(16, 8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruned(model, optimizer, mask_calculator=name, allow_permutation=True)
    assert ASP.is_sparsity_enabled()
    for layer in model:
        assert Tiles().holds(layer.weight)
        assert is_2of4(layer.weight.transpose(0, 1))


def test_callable_mask():
    model = perceptron()
    pruned(model, mask_calculator=lambda weight: (weight > 0).int())
    assert (model[0].weight >= 0).all()
