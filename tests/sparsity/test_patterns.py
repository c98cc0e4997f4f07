"""2:4 masks against a brute force that looks at one group at a time."""

import itertools

import pytest
import torch
from torch import nn

from mpx.sparsity.patterns import is_2of4, kept_magnitude, mask_2of4

SHAPES = [(8, 16), (3, 4), (16, 8, 3), (8, 16, 3, 3), (4, 4, 1, 2, 3)]


def brute_force(weight):
    """Per output and kernel position, per 4 inputs: the pair with the largest |w| sum, the earliest among equals."""
    mask = torch.zeros_like(weight, dtype=torch.bool)
    for out in range(weight.shape[0]):
        for position in itertools.product(*(range(size) for size in weight.shape[2:])):
            for start in range(0, weight.shape[1], 4):
                group = [weight[(out, start + i, *position)].abs().item() for i in range(4)]
                best = max(itertools.combinations(range(4), 2), key=lambda pair: sorted((group[i] for i in pair), reverse=True))
                for i in best:
                    mask[(out, start + i, *position)] = True
    return mask


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_mask_equals_brute_force(shape, ties):
    generator = torch.Generator().manual_seed(sum(shape))
    weight = torch.randn(shape, generator=generator)
    weight = weight.mul(2).round() if ties else weight
    assert torch.equal(mask_2of4(weight), brute_force(weight))


def test_memory_layout_does_not_matter():
    weight = torch.randn(8, 16, 3, 3)
    expected = mask_2of4(weight)
    assert torch.equal(mask_2of4(weight.to(memory_format=torch.channels_last)), expected)
    assert torch.equal(mask_2of4(weight.transpose(0, 1).contiguous().transpose(0, 1)), expected)


def test_zero_rows_still_keep_two_of_four():
    mask = mask_2of4(torch.zeros(2, 8))
    assert mask.tolist() == [[True, True, False, False] * 2] * 2


def test_largest_magnitude_not_largest_value():
    assert mask_2of4(torch.tensor([[1.0, -5.0, 2.0, -3.0]])).tolist() == [[False, True, False, True]]


def test_kept_magnitude_of_normal_weights():
    """0.746 on normal values, as measured for the 1-D pattern."""
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    assert kept_magnitude(weight, mask_2of4(weight)) == pytest.approx(0.746, abs=0.002)


def test_is_2of4_finds_one_bad_group():
    weight = nn.Parameter(torch.randn(8, 16, 3, 3))
    with torch.no_grad():
        weight.mul_(mask_2of4(weight))
        assert is_2of4(weight)
        weight[5, 4:8, 2, 1] = 1.0
    assert not is_2of4(weight)


@pytest.mark.parametrize("shape", [(8,), (8, 6)])
def test_shapes_that_have_no_groups_are_refused(shape):
    with pytest.raises(ValueError, match="divisible by 4"):
        mask_2of4(torch.zeros(shape))
