"""NVIDIA's own ASP behind a pattern, on the CPU: where the variable MPX_APEX names a checkout of it. Its .cuda() stays on the CPU here."""

import os
import random
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from mpx.compat.asp.calculators import m4n2_1d
from mpx.errors import UserError
from mpx.sparsity.apex import Apex, ask
from mpx.sparsity.layers import Rules, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM
from mpx.sparsity.tiles import Tiles

pytestmark = pytest.mark.skipif("MPX_APEX" not in os.environ, reason="MPX_APEX names no checkout of NVIDIA's apex")


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
    masks, pruned = chosen(model, Apex(NofM(2, 4), model, nullcontext))
    assert set(pruned) == {
        "conv.weight", "group.weight", "attention.in_proj_weight", "attention.out_proj.weight", "narrow.weight", "shared.weight",
    }  # fmt: skip
    found = masks.pattern.masks(list(pruned.values()))
    assert list(model.state_dict()) == list(before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for parameter, mask in zip(pruned.values(), found, strict=True):
        assert torch.equal(mask, m4n2_1d(parameter))
        assert mask.stride() == parameter.stride()


def test_pruning_by_them_holds_and_says_what_it_kept():
    ours, theirs = net(), net()
    one, _ = chosen(ours, NofM(2, 4))
    other, _ = chosen(theirs, Apex(NofM(2, 4), theirs, nullcontext))
    for masks in (one, other):
        masks.prune([])
        assert masks.verify() == []
    assert other.kept == pytest.approx(one.kept)
    assert 0.5 < other.kept["conv.weight"] < 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits(dtype):
    model = net().to(dtype)
    masks, pruned = chosen(model, Apex(NofM(2, 4), model, nullcontext))
    for parameter, mask in zip(pruned.values(), masks.pattern.masks(list(pruned.values())), strict=True):
        assert torch.equal(mask, m4n2_1d(parameter))


def test_what_this_apex_cannot_is_found_out_before_training():
    """At its commit of July 2026, 6424da3, the 2-D masks and the permutation raise; a version that mends them passes here as well."""
    model = net()
    for pattern, permute in ((NofM(2, 4), False), (Tiles("best"), False), (Tiles("greedy"), False), (NofM(2, 4), True)):
        apex, state = Apex(pattern, model, nullcontext), (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
        message = None
        try:
            apex.rehearse(torch.device("cpu"), permute=permute)
        except UserError as error:
            message = str(error)
        if message is not None:
            assert pattern != NofM(2, 4) or permute
            assert f"this apex fails at {apex.calculator} masks with allow_permutation={permute} (" in message
            assert "Use sparsity.backend=mpx." in message
        assert torch.equal(torch.get_rng_state(), state[0])
        assert random.getstate() == state[1]
        assert np.random.get_state()[1].tolist() == state[2]


def test_a_permutation_that_fails_leaves_the_model_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    before, x = {name: value.clone() for name, value in model.state_dict().items()}, torch.randn(4, 16)
    expected = model(x)
    apex = Apex(NofM(2, 4), model, nullcontext)
    found = apex.permute(weights(model, apex, Rules()), [])
    torch.testing.assert_close(model(x), expected)
    if found["reason"] is None:
        assert found["kept_after"] > found["kept_before"]
    else:
        assert "fails at m4n2_1d masks with allow_permutation=True" in found["reason"]
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert found["kept_after"] == found["kept_before"]


def test_layers_that_apex_has_no_answer_to():
    for model, line in (
        (nn.LSTM(16, 16), "apex's ASP cannot prune LSTM layers (weight_ih_l0)."),
        (net().requires_grad_(False), "apex's ASP cannot prune frozen weights (conv.weight)."),
    ):
        apex = Apex(NofM(2, 4), model, nullcontext)
        with pytest.raises(UserError, match=r"sparsity\.backend=apex") as error:
            apex.refuse(weights(model, apex, Rules()))
        assert line in str(error.value)


def test_other_shapes_stay_dense():
    model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 32))
    apex = Apex(NofM(2, 4), model, nullcontext)
    reasons = [weight.reason for weight in weights(model, apex, Rules(shape="any"))]
    assert reasons == ["24×24: apex only prunes multiples of 8×16", "32×24: apex only prunes multiples of 8×16"]


def test_ask_again_and_for_another_model():
    one, two = nn.Linear(16, 8), nn.Linear(16, 8)
    for model in (one, two, one):
        (mask,) = ask(model, [model.weight], "m4n2_1d")
        assert torch.equal(mask, m4n2_1d(model.weight))
