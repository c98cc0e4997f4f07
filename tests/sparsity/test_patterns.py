"""Every pattern's masks against a brute force, on random tensors of all shapes, formats and memory
layouts.
"""

from math import isnan

import brute_force
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mpx.sparsity.patterns import NofM, Unstructured, kept_magnitude, mask_2of4
from mpx.sparsity.tiles import Tiles

PATTERNS = {
    "2of4": (NofM(2, 4), lambda w: brute_force.n_of_m(w, 2, 4)),
    "1of4": (NofM(1, 4), lambda w: brute_force.n_of_m(w, 1, 4)),
    "4of8": (NofM(4, 8), lambda w: brute_force.n_of_m(w, 4, 8)),
    "3of16": (NofM(3, 16), lambda w: brute_force.n_of_m(w, 3, 16)),
    "2of4_2d best": (Tiles("best"), brute_force.tiles_best),
    "2of4_2d greedy": (Tiles("greedy"), brute_force.tiles_greedy),
    "unstructured": (Unstructured(0.3), lambda w: brute_force.unstructured(w, 0.3)),
}
EVERY = pytest.mark.parametrize("name", PATTERNS)


@st.composite
def tensors(draw):
    """[out, in] or [out, in, k...] with ties, zero rows, infinities, NaN, odd widths, some empty, in three
    formats and any order.
    """
    shape = (
        draw(st.integers(0, 6)),
        draw(st.integers(0, 19)),
        *draw(st.lists(st.integers(0, 3), max_size=2)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randn(shape, generator=generator)
    if draw(st.booleans()):
        values = (2 * values).round() / 2
    if shape[0] and draw(st.booleans()):
        values[draw(st.integers(0, shape[0] - 1))] = -0.0
    for value in draw(st.lists(st.sampled_from([float("nan"), float("inf"), float("-inf")]), max_size=2)):
        values[torch.rand(shape, generator=generator) < 0.2] = value
    values = values.to(draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])))
    order = draw(st.permutations(range(len(shape))))
    return values.permute(order).contiguous().permute([order.index(axis) for axis in range(len(shape))])


@EVERY
@settings(max_examples=60, deadline=None)
@given(weight=tensors())
def test_mask_equals_brute_force(name, weight):
    pattern, expected = PATTERNS[name]
    mask = pattern.mask(weight)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, expected(weight))
    assert pattern.holds(weight.masked_fill(~mask, 0))


@EVERY
@settings(max_examples=20, deadline=None)
@given(weights=st.lists(tensors(), min_size=2, max_size=4))
def test_many_weights_at_once_are_masked_as_one_by_one(name, weights):
    pattern, _ = PATTERNS[name]
    for mask, weight in zip(pattern.masks(weights), weights, strict=True):
        assert torch.equal(mask, pattern.mask(weight))
        assert mask.shape == weight.shape


@EVERY
def test_holds_finds_one_value_too_many(name):
    pattern, _ = PATTERNS[name]
    weight = nn.Parameter(torch.randn(8, 16, 3, 3))
    with torch.no_grad():
        weight.masked_fill_(~pattern.mask(weight), 0)
        assert pattern.holds(weight)
        weight.masked_fill_(weight == 0, 1e-30) if name == "unstructured" else weight[5, :, 2, 1].fill_(1.0)
    assert not pattern.holds(weight)


def test_the_share_that_is_kept():
    mask = torch.tensor([True, True, False, False])
    assert kept_magnitude(torch.tensor([3.0, -3.0, 2.0, 0.0]), mask) == 0.75
    assert kept_magnitude(torch.zeros(4), mask) == 1
    assert isnan(kept_magnitude(torch.tensor([torch.nan, 1.0, 1.0, 1.0]), mask))


# all orders of four
NONFINITE = torch.cartesian_prod(*[torch.tensor([0.0, 5.0, -3.0, float("nan"), float("-inf")])] * 4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_infinite_and_nan_weights_are_among_the_n_that_stay(n):
    mask = NofM(n, 4).mask(NONFINITE)
    assert (mask.sum(1) == n).all()
    kept = (mask & ~NONFINITE.isfinite()).sum(1)
    assert torch.equal(kept, (~NONFINITE.isfinite()).sum(1).clamp(max=n))
    assert mask_2of4(torch.tensor([[0.0, 5.0, float("nan"), 3.0]])).tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("fill", [torch.randn, torch.rand])
def test_greedy_keeps_more_than_best_only_with_seven_values(fill):
    tiles = fill(4, 20000, generator=torch.Generator().manual_seed(1))
    kept = [Tiles(search).mask(tiles).view(4, -1, 4) for search in ("greedy", "best")]
    greedy, best = ((tiles.abs().double().view(4, -1, 4) * mask).sum((0, 2)) for mask in kept)
    more, values = greedy > best, kept[0].sum((0, 2))
    assert more.any()
    assert values[more].eq(7).all()
    assert set(values.tolist()) == {7, 8}


@pytest.mark.parametrize(
    ("pattern", "shape", "reason"),
    [
        (NofM(2, 4), (8, 2), "2 inputs, of which 2of4 keeps all"),
        (NofM(2, 4), (8, 1), "1 input, of which 2of4 keeps all"),
        (Tiles(), (2, 1), "2×1, of which 2of4_2d keeps all"),
        (Unstructured(0.01), (4, 4), "0 of 16 weights would stay at density 0.01"),
        (NofM(2, 4), (8, 3), None),
        (Tiles(), (2, 16), None),
    ],
)
def test_shapes_that_cannot_be_pruned_say_why(pattern, shape, reason):
    assert pattern.misfit(shape) == reason
