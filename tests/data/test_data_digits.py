import hashlib

import torch

import mpx.data
from mpx.data.spec import Spec
from mpx.data.splits import samples_line


def test_split_is_stratified_and_fixed(config):
    data = mpx.data.load(config("digits"))
    assert data.sizes == {"train": 1297, "val": 140, "test": 360}
    assert data.spec == Spec("image", (1, 8, 8), 10)
    share = torch.bincount(torch.cat([s.labels for s in (data.train, data.val, data.test)])) / 1797
    for split in (data.train, data.val, data.test):
        assert (torch.bincount(split.labels) - share * len(split)).abs().max() <= 1
    whole = b"".join(
        s.images.numpy().tobytes() + s.labels.numpy().tobytes() for s in (data.train, data.val, data.test)
    )
    assert hashlib.sha256(whole).hexdigest()[:16] == "43f1ea7f04cf9ea4"


def test_what_an_epoch_leaves_out_is_said(config):
    data = mpx.data.load(config("digits"))
    line = "1,297 training images of 8 × 8 pixels, 20 batches of 64 an epoch"
    assert samples_line(data, 64, 20) == f"{line}, which leaves out 17, others each time"
    assert samples_line(data, 1297, 1) == "1,297 training images of 8 × 8 pixels, 1 batch of 1297 an epoch"


def test_pixels_are_scaled_from_16_and_normalised(config):
    data = mpx.data.load(config("digits", mean=[0.5], std=[0.25]))
    x, _ = data.test.finish(*data.test.raw(torch.arange(360), None), None)
    torch.testing.assert_close(x, (data.test.images / 16 - 0.5) / 0.25)
    assert x.dtype == torch.float32


def test_image_size_resizes_once(config):
    data = mpx.data.load(config("digits", image_size=32))
    assert data.spec.shape == (1, 32, 32)
    assert data.train.images.shape == (1297, 1, 32, 32)
    assert data.train.images.dtype == torch.uint8
    small = mpx.data.load(config("digits"))
    assert abs(float((data.train.images / 255).mean() - (small.train.images / 16).mean())) < 0.01
