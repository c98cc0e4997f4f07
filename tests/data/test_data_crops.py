"""The crops of photographs, beside torchvision's own."""

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from mpx.data.decoding import Box, crop, cut, random_box, whole_box
from mpx.data.order import seeded

SIZES = [(375, 500), (64, 64), (1000, 90), (90, 1000), (1, 1), (2, 300)]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_a_random_box_lies_within_the_image_and_is_that_of_its_seed(height, width):
    boxes = [random_box(height, width, 224, seed, mirror=True) for seed in range(300)]
    for (top, left, high, wide), resized, _ in boxes:
        assert 0 <= top <= top + high <= height
        assert 0 <= left <= left + wide <= width
        assert high > 0
        assert wide > 0
        assert resized == (224, 224)
    assert boxes == [random_box(height, width, 224, seed, mirror=True) for seed in range(300)]
    assert 100 < sum(box.mirrored for box in boxes) < 200
    assert not any(random_box(height, width, 224, seed, mirror=False).mirrored for seed in range(300))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (1000, 90)])
def test_random_boxes_are_spread_as_torchvisions(height, width):
    theirs, image = v2.RandomResizedCrop(224), torch.zeros(3, height, width, dtype=torch.uint8)
    with seeded(0):
        drawn = [theirs.make_params([image]) for _ in range(3000)]
    expected = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in drawn]).float()
    found = [random_box(height, width, 224, seed, mirror=True).part for seed in range(3000)]
    found = torch.tensor(found).float()
    error = 5 * expected.std(0) / 3000**0.5 * 2**0.5 + 1  # and a pixel for rounding
    assert ((found.mean(0) - expected.mean(0)).abs() <= error).all()
    assert ((found.std(0) - expected.std(0)).abs() <= error).all()


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (256, 256), (90, 1000), (257, 333)])
def test_the_whole_box_is_torchvisions_resize_and_centre_crop(height, width):
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    how = v2.Compose([v2.Resize(64, antialias=True), v2.CenterCrop(56)])
    found = crop([image], [whole_box(height, width, 64)], 56)[0]
    assert (found.int() - how(image).int()).abs().max() <= 1  # theirs rounds between two sides


@pytest.mark.parametrize("size", [32, 224])
def test_a_crop_is_pillows_but_for_rounding(size):
    images = [torch.randint(0, 256, (3, *sides), dtype=torch.uint8) for sides in SIZES[:4]]
    boxes = [random_box(*sides, size, seed, mirror=True) for seed, sides in enumerate(SIZES[:4])]
    assert any(box.mirrored for box in boxes)
    cuts = [cut(to_pil_image(image), box, size) for image, box in zip(images, boxes, strict=True)]
    theirs = torch.stack([pil_to_tensor(square) for square in cuts])
    assert (crop(images, boxes, size).int() - theirs.int()).abs().max() <= 1


def test_images_of_any_size_become_one_batch():
    images = [torch.full((3, 10 + i, 20), i, dtype=torch.uint8) for i in range(3)]
    images[1][:, :, :5] = 100
    boxes = [Box((0, 0, 10, 10), (8, 8), mirrored) for mirrored in (False, True, False)]
    x = crop(images, boxes, 8)
    assert x.shape == (3, 3, 8, 8)
    assert x.dtype == torch.uint8
    assert x[[0, 2], :, 4, 4].tolist() == [[0] * 3, [2] * 3]
    assert x[1, 0, 4].argmax() > 4
