"""Image files to pixels, by Pillow, and JPEGs by a GPU's decoder; and the squares that are cut out of them.

Pillow is the reference. Squares are those of torchvision's RandomResizedCrop and mirror image for training,
of resize and centre crop for evaluation. A box is drawn from its sample's seed, whoever cuts it out.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional

from mpx.errors import UserError, first_line

# A JPEG is a list of segments: 255, a marker, the length in two bytes, the content. Source: ITU-T T.81, B.
START, ADOBE, FRAMES = b"\xff\xd8", 0xEE, {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of RandomResizedCrop
PIXELS = 2**25  # of the parts of images that are resized at once: 200 MB in FP16


def check_image(path: str) -> tuple[int, int]:
    """The width and height of an image that can be read. Raises UserError."""
    with opened(path) as image:
        size = image.size
        image.draft("RGB", (1, 1))  # a JPEG is read to its end, but an eighth of its sides is computed
        image.load()
    return size


def decode(path: str) -> Image.Image:
    """The image as RGB. Raises UserError."""
    with opened(path) as image:
        return image.convert("RGB")


def read(path: str) -> Tensor:
    """The bytes of a JPEG that a GPU decodes as Pillow does, uint8 [L]; of other images the pixels, uint8
    [3, H, W]. Raises UserError.
    """
    with reading(path):
        content = np.fromfile(path, dtype=np.uint8)
    return torch.from_numpy(content) if is_usual(content.data) else functional.pil_to_tensor(decode(path))


def is_usual(content: memoryview) -> bool:
    """Whether it is a JPEG in grey or in brightness and two colours, of 8 bits. Others are CMYK or RGB."""
    place = len(START) if content[: len(START)] == START else len(content)
    while place + 16 <= len(content) and content[place] == 255:
        marker = content[place + 1]
        if marker in FRAMES:
            return content[place + 4] == 8 and content[place + 9] in (1, 3)
        if marker == ADOBE and content[place + 15] == 0:
            return False
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return False


def decode_on(device: torch.device, paths: Sequence[str], contents: Sequence[Tensor]) -> list[Tensor]:
    """The images uint8 [3, H, W] on `device`. contents: of the files, as `read` gives them. Raises
    UserError.
    """
    coded = [content for content in contents if content.dim() == 1]
    try:
        decoded = iter(decode_jpeg(coded, ImageReadMode.RGB, device) if coded else [])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # it does not say which one
        if len(paths) == 1:
            return [functional.pil_to_tensor(decode(paths[0])).to(device)]
        alone = zip(paths, contents, strict=True)
        return [image for path, content in alone for image in decode_on(device, [path], [content])]
    return [next(decoded) if content.dim() == 1 else content.to(device) for content in contents]


@contextmanager
def opened(path: str) -> Iterator[Image.Image]:
    """The image of a file. Raises a UserError as `reading`, or if it has other than 8 bits."""
    with reading(path), Image.open(path) as image:
        if image.mode.startswith(("I", "F")):  # its conversion to RGB would cut the values off at 255
            raise ValueError("its pixels have 16 or 32 bits, where 8 are needed")
        yield image


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Inside, what Pillow raises for a file that is damaged or no image becomes a UserError that names it."""
    try:
        yield
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"data.path: {path} cannot be read as an image ({first_line(error)}): replace or remove the file"
        ) from error


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


def cut(image: Image.Image, box: Box, size: int) -> Image.Image:
    """A square of `size` pixels."""
    image = functional.resized_crop(image, *box.part, list(box.resized), antialias=True)
    image = functional.center_crop(image, [size, size])
    return functional.horizontal_flip(image) if box.mirrored else image


def crop(images: Sequence[Tensor], boxes: Sequence[Box], size: int) -> Tensor:
    """One square of each image, as `cut` makes it but for rounding. images: uint8 [3, H, W], on one device.
    Returns uint8 [B, 3, size, size].

    Resizing is two products with the weights of the triangle filter. On an H200 they make 65,000 squares a
    second, and torchvision's functions, one image at a time, 4,000 to 9,000.
    """
    largest = max(box.part[2] for box in boxes) * max(box.part[3] for box in boxes)
    together = max(1, PIXELS // largest)
    parts = [slice(first, first + together) for first in range(0, len(images), together)]
    return torch.cat([_crop_together(images[part], boxes[part], size) for part in parts])


def _crop_together(images: Sequence[Tensor], boxes: Sequence[Box], size: int) -> Tensor:
    device = images[0].device
    dtype = torch.float16 if device.type == "cuda" else torch.float32  # both hold 0 to 255 exactly
    heights, widths = ([box.part[side] for box in boxes] for side in (2, 3))
    x = torch.zeros(len(images), 3, max(heights), max(widths), dtype=dtype, device=device)
    for place, (image, box) in enumerate(zip(images, boxes, strict=True)):
        top, left, height, width = box.part
        x[place, :, :height, :width] = image[:, top : top + height, left : left + width]
    rows = _weights(heights, [box.resized[0] for box in boxes], size, device)
    columns = _weights(widths, [box.resized[1] for box in boxes], size, device)
    mirrored = torch.tensor([box.mirrored for box in boxes], device=device)
    columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    x = rows.to(dtype)[:, None] @ x @ columns.to(dtype)[:, None].mT
    return x.round_().clamp_(0, 255).to(torch.uint8)


def _weights(pixels: Sequence[int], resized: Sequence[int], size: int, device: torch.device) -> Tensor:
    """The share of each pixel of a side in each pixel of its resized middle: float32 [B, size, longest].

    pixels: of each image's side; resized: of the whole side afterwards. Source: Pillow's BILINEAR filter,
    with antialiasing.
    """
    before, after = (torch.tensor(side, device=device)[:, None, None] for side in (pixels, resized))
    scale = before / after
    skipped = ((after - size) / 2).round()  # of the resized side, in front of the middle
    centre = (torch.arange(size, device=device)[:, None] + skipped + 0.5) * scale
    place = torch.arange(max(pixels), device=device)
    weights = (1 - (place + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0) * (place < before)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)  # zeros outside of the image
