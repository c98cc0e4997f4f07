from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from mpx.data import augment
from mpx.data.splits import Images


def places(pad):
    """Where the corner of a crop may lie that is as large as the image."""
    return 2 * pad + 1


@pytest.mark.parametrize(("pad", "crop"), [(0, 5), (2, 6), (1, 10), (4, 8)])
def test_crops_are_parts_of_the_image_and_its_border(pad, crop):
    images = torch.randint(1, 256, (64, 3, 8, 8), dtype=torch.uint8)
    split = Images(
        images, torch.arange(64), torch.zeros(3, 1, 1), torch.ones(3, 1, 1), 255, "crop_flip", pad, crop
    )
    rows = split.plan(0, 0)
    made = split.finish(*split.raw(torch.arange(64), rows), rows)[0]
    assert made.shape == (64, 3, crop, crop)
    assert rows[:, :2].unique().tolist() == list(range(8 + 2 * pad - crop + 1))
    for image, (top, left, mirrored), result in zip(images, rows.tolist(), made, strict=True):
        expected = F.pad(image, (pad, pad, pad, pad))[:, top : top + crop, left : left + crop] / 255
        assert torch.allclose(result, expected.flip(-1) if mirrored else expected)


def test_draws_cover_every_shift_and_both_sides():
    rows = augment.draw(10_000, "crop_flip", places(2), seed=0, epoch=0)
    for column, values in enumerate((5, 5, 2)):
        shares = torch.bincount(rows[:, column], minlength=values) / 10_000
        assert (shares - 1 / values).abs().max() < 0.02


def test_each_image_is_mirrored_in_every_other_epoch():
    mirrored = [augment.draw(500, "crop_flip", 9, 0, epoch)[:, 2] for epoch in range(4)]
    assert all(torch.equal(one, 1 - other) for one, other in pairwise(mirrored))
    assert not torch.equal(mirrored[0], augment.draw(500, "crop_flip", 9, 1, 0)[:, 2])
    assert torch.equal(mirrored[0][:100], augment.draw(100, "crop_flip", 9, 0, 0)[:, 2])


@pytest.mark.parametrize("side", [1, 2, 5, 30])
def test_cut_out_equals_a_loop_over_samples(side):
    x = torch.rand(40, 3, 9, 6) + 1
    centres = augment.draw_centres(len(x), 9, 6, seed=0, epoch=0)
    made = augment.cut_out(x, centres, side)
    for image, (down, across), result in zip(x, centres.tolist(), made, strict=True):
        expected = image.clone()
        first = [max(0, middle - side // 2) for middle in (down, across)]
        expected[
            :, first[0] : max(0, down - side // 2 + side), first[1] : max(0, across - side // 2 + side)
        ] = 0
        assert torch.equal(result, expected)
