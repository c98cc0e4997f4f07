"""Image files to pixels: a device's decoder, here that of the CPU, beside Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from mpx.data import decoding
from mpx.data.decoding import check_image, decode, decode_on, is_usual, read
from mpx.errors import UserError

CPU = torch.device("cpu")
FILES = {  # file -> (mode of Pillow, how it is saved, whether a GPU decodes it)
    "colour.jpg": ("RGB", {}, True),
    "fine.jpg": ("RGB", {"subsampling": 0, "quality": 95}, True),
    "progressive.jpg": ("RGB", {"progressive": True}, True),
    "grey.jpg": ("L", {}, True),
    "cmyk.jpg": ("CMYK", {}, False),
    "rgb.jpg": ("RGB", {"keep_rgb": True}, False),
    "colour.png": ("RGB", {}, False),
    "grey.png": ("L", {}, False),
    "few.png": ("P", {}, False),
    "clear.png": ("RGBA", {}, False),
}


@pytest.fixture
def files(tmp_path):
    """A photograph, so to speak, in files of all kinds."""
    across, down = np.meshgrid(np.arange(60), np.arange(40))
    pixels = np.stack([4 * across, 6 * down, 120 + 2 * across - 3 * down], axis=2).astype(np.uint8)
    for name, (mode, how, _) in FILES.items():
        Image.fromarray(pixels).convert(mode).save(tmp_path / name, **how)
    return [str(tmp_path / name) for name in FILES]


def test_every_kind_of_file_in_one_batch(files):
    contents = [read(path) for path in files]
    assert [content.dim() == 1 for content in contents] == [gpu for *_, gpu in FILES.values()]
    for path, image in zip(files, decode_on(CPU, files, contents), strict=True):
        expected = pil_to_tensor(decode(path))
        assert image.shape == expected.shape == (3, 40, 60)
        assert image.dtype == torch.uint8
        assert (image.float() - expected.float()).abs().mean() < 2, path


def test_pillow_decodes_what_the_device_refuses(files, monkeypatch):
    tried = []

    def refusing(contents, mode, device):
        tried.append(len(contents))
        if any(len(content) == len(refused) for content in contents):
            raise RuntimeError("unsupported")
        return decode_jpeg(contents, mode, device)

    decode_jpeg, contents = decoding.decode_jpeg, [read(path) for path in files]
    expected, refused = decode_on(CPU, files, contents), contents[0]
    monkeypatch.setattr(decoding, "decode_jpeg", refusing)
    found = decode_on(CPU, files, contents)
    assert tried == [4, 1, 1, 1, 1]
    assert all(torch.equal(image, other) for image, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"\xff\xd8\xff\xe0\xff\xff", b"\xff\xd8" + bytes(50)])
def test_the_start_of_a_jpeg_is_none(content):
    assert not is_usual(memoryview(content))


@pytest.mark.parametrize(
    ("mode", "name"), [("CMYK", "a.jpg"), ("L", "a.png"), ("L", "a.jpg"), ("1", "a.png")]
)
def test_cmyk_and_grey_images(tmp_path, mode, name):
    colour = Image.new("RGB", (32, 32), (200, 200, 200))
    colour.convert(mode, dither=Image.Dither.NONE).save(tmp_path / name)
    check_image(str(tmp_path / name))
    image = decode(str(tmp_path / name))
    assert image.mode == "RGB"
    expected = 255 if mode == "1" else 200
    assert all(abs(value - expected) <= 2 for value in image.getpixel((16, 16)))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.int32])
def test_images_of_more_than_8_bits_are_refused(tmp_path, dtype):
    """Pillow would make all but the darkest pixels 255."""
    Image.fromarray(np.ones((40, 60), dtype)).save(tmp_path / "deep.tif")
    with pytest.raises(UserError, match=r"deep\.tif cannot be read as an image \(its pixels have 16 or 32"):
        decode(str(tmp_path / "deep.tif"))
