"""Crops of photographs that differ in size: torchvision's RandomResizedCrop and mirror image for training,
resize and centre crop for evaluation. A box is drawn from its sample's seed, whoever cuts it out.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of RandomResizedCrop


class Box(NamedTuple):
    """The part of an image that is resized, and what it becomes."""

    part: tuple[int, int, int, int]  # top, left, height, width
    resized: tuple[int, int]  # height, width; a square is then cut out of the middle
    mirrored: bool = False


def random_box(height: int, width: int, size: int, seed: int, *, mirror: bool) -> Box:
    """The box of an image of height × width pixels, which becomes a square of `size`."""
    draw = Random(seed)
    for _ in range(TRIES):
        area = height * width * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(*map(math.log, RATIO)))
        high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < high <= height and 0 < wide <= width:
            top, left = (int(draw.random() * (room + 1)) for room in (height - high, width - wide))
            break
    else:  # as much of the middle as the ratio allows
        high, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
        top, left = (height - high) // 2, (width - wide) // 2
    return Box((top, left, high, wide), (size, size), mirror and draw.random() < 0.5)


def whole_box(height: int, width: int, shorter: int) -> Box:
    """The whole image, resized so that its shorter side has `shorter` pixels."""
    high, wide = (shorter * side // min(height, width) for side in (height, width))
    return Box((0, 0, height, width), (high, wide))


def cut(image, box: Box, size: int):
    """A square of `size` pixels of a Pillow image or uint8 tensor [3, H, W], which it remains."""
    image = functional.resized_crop(image, *box.part, list(box.resized), antialias=True)
    image = functional.center_crop(image, [size, size])
    return functional.horizontal_flip(image) if box.mirrored else image


def crop(images: Sequence[Tensor], boxes: Sequence[Box], size: int) -> Tensor:
    """One square of each image. images: uint8 [3, H, W], on one device. Returns uint8 [B, 3, size, size]."""
    return torch.stack([cut(image, box, size) for image, box in zip(images, boxes, strict=True)])
