import pytest
import torch
from torch.nn import functional as F

from mpx.data import augment


@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (6, 3, 9, 5)])
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_batch_equals_a_loop_over_samples(shape, pad):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    rows = augment.draw(len(x), "crop_flip", pad, seed=0, epoch=0)
    made = augment.crop_flip(x, rows, pad)
    for image, (top, left, mirrored), result in zip(x, rows.tolist(), made, strict=True):
        expected = F.pad(image, (pad, pad, pad, pad))[:, top : top + shape[2], left : left + shape[3]]
        assert torch.equal(result, expected.flip(-1) if mirrored else expected)
    assert made.dtype == torch.uint8


def test_no_shift_and_no_flip_is_the_image_itself():
    x = torch.arange(2 * 9, dtype=torch.uint8).view(2, 1, 3, 3)
    rows = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.uint8)
    assert torch.equal(augment.crop_flip(x, rows, 1), torch.stack([x[0], x[1].flip(-1)]))


def test_draws_cover_every_shift_and_both_sides():
    rows = augment.draw(10_000, "crop_flip", 2, seed=0, epoch=0)
    for column, values in enumerate((5, 5, 2)):
        shares = torch.bincount(rows[:, column], minlength=values) / 10_000
        assert (shares - 1 / values).abs().max() < 0.02
    assert rows.dtype == torch.uint8


def test_choices():
    assert augment.draw(10, "none", 4, seed=0, epoch=0) is None
    assert augment.draw(1000, "crop", 4, seed=0, epoch=0)[:, 2].sum() == 0
    assert torch.equal(augment.draw(9, "crop", 4, 0, 0), augment.draw(9, "crop", 4, 0, 0))
    assert not torch.equal(augment.draw(9, "crop", 4, 0, 0), augment.draw(9, "crop", 4, 0, 1))


def test_normalise():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    made = augment.normalise(x, 255, torch.full((1, 1, 1), 0.2), torch.full((1, 1, 1), 0.4))
    torch.testing.assert_close(made.flatten(), torch.tensor([-0.5, 0.0, 2.0]))
