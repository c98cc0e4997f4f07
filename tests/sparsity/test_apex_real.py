"""NVIDIA's own ASP behind a pattern, on the CPU: where the variable MPX_APEX names a checkout of it. Its
.cuda() stays on the CPU here.
"""

import os
import sys

import pytest
import torch
from torch import nn

from mpx.errors import UserError
from mpx.sparsity.choose import Apex
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM
from mpx.sparsity.tiles import Tiles

pytestmark = pytest.mark.skipif(
    "MPX_APEX" not in os.environ, reason="MPX_APEX names no checkout of NVIDIA's apex"
)


@pytest.fixture(autouse=True)
def apex(monkeypatch):
    monkeypatch.syspath_prepend(os.environ["MPX_APEX"])
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)
    monkeypatch.setattr(torch.cuda, "FloatTensor", torch.FloatTensor)
    monkeypatch.setattr(torch.cuda, "IntTensor", torch.IntTensor)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "apex"]:
        sys.modules.pop(name)


class Narrow(nn.Linear):
    """A subclass, which apex by itself does not know."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3)
        self.group = nn.Conv2d(32, 32, 3, groups=2)
        self.attention = nn.MultiheadAttention(32, 2)
        self.narrow = Narrow(32, 8)
        self.odd = nn.Linear(8, 5)
        self.shared = nn.Linear(32, 32)
        self.again = nn.Linear(32, 32)
        self.again.weight = self.shared.weight


def net():
    torch.manual_seed(0)
    return Net().to(memory_format=torch.channels_last)


def chosen(model, pattern, rules=Rules()):  # noqa: B008
    found = weights(model, pattern, rules)
    return Masks(found, pattern), {weight.name: weight.parameter for weight in found if weight.reason is None}


def test_masks_are_apexs_and_the_model_as_before():
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    masks, pruned = chosen(model, Apex(NofM(2, 4), model))
    assert set(pruned) == {
        "conv.weight", "group.weight", "attention.in_proj_weight", "attention.out_proj.weight",
        "narrow.weight", "shared.weight",
    }  # fmt: skip
    found = masks.pattern.masks(list(pruned.values()))
    assert list(model.state_dict()) == list(before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for parameter, mask in zip(pruned.values(), found, strict=True):
        assert torch.equal(mask, NofM(2, 4).mask(parameter))
        assert mask.stride() == parameter.stride()


def test_pruning_by_them_holds_and_says_what_it_kept():
    ours, theirs = net(), net()
    one, _ = chosen(ours, NofM(2, 4))
    other, _ = chosen(theirs, Apex(NofM(2, 4), theirs))
    for masks in (one, other):
        masks.prune([])
        assert masks.verify() == []
    assert other.kept == pytest.approx(one.kept)
    assert 0.5 < other.kept["conv.weight"] < 0.9


def test_what_this_apex_cannot_is_found_out_before_training():
    """At its commit of July 2026, 6424da3, the 2-D masks raise; a version that mends them passes here as
    well.
    """
    for pattern in (NofM(2, 4), Tiles("best"), Tiles("greedy")):
        apex = Apex(pattern, model := net())
        try:
            apex.masks([model.conv.weight])
        except UserError as error:
            assert pattern != NofM(2, 4)
            assert "this apex fails at" in str(error)  # noqa: PT017
