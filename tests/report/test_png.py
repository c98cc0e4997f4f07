"""PNG files, read back by Pillow."""

import io

import numpy as np
import pytest
from PIL import Image

from mpx.report.plots.png import png


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 5), (200, 301)])
def test_pillow_reads_the_same_pixels(height, width, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    with Image.open(io.BytesIO(png(pixels, 160))) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        assert np.array_equal(np.asarray(image), pixels[:, :, :3])
        assert image.info["dpi"] == pytest.approx((160, 160), abs=0.01)
