"""Image files to pixels: by Pillow, and JPEGs by a GPU's decoder. Pillow is the reference."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2.functional import pil_to_tensor

from mpx.errors import UserError, first_line

# A JPEG is a list of segments: 255, a marker, the length in two bytes, the content. Source: ITU-T T.81, B.
START, ADOBE, FRAMES = b"\xff\xd8", 0xEE, {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


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
    return torch.from_numpy(content) if is_usual(content.data) else pil_to_tensor(decode(path))


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
            return [pil_to_tensor(decode(paths[0])).to(device)]
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
