"""On a CUDA device: JPEGs are decoded there as Pillow decodes them."""

import numpy as np
import pytest
import torch
from few_steps import FEW_STEPS
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

import mpx.data
from mpx.data.datamodule import choose_loader
from mpx.data.decoding import decode, decode_on, read
from mpx.data.loaders import TrainLoader
from mpx.data.readers import images_per_s, reader_of

DEVICE = torch.device("cuda", 0)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
COUNT, BATCH = 80, 16  # images of each class; samples per step


def picture(seed, height=375, width=500):
    """Smooth, with some noise."""
    random = np.random.default_rng(seed)
    smooth = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(smooth) + random.normal(0, 8, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs of several sizes, and a PNG in each class."""
    root = tmp_path_factory.mktemp("images")
    for label in range(2):
        (root / ["cat", "dog"][label]).mkdir()
        for i in range(COUNT):
            kind = "png" if i == 0 else "jpg"
            # colours change slowly, as in photographs: nvJPEG repeats them where Pillow interpolates
            made = picture(1000 * label + i, 200 + i, 260 - i)
            made.save(root / ["cat", "dog"][label] / f"{i}.{kind}")
    return root


@pytest.fixture
def data(folder):
    return mpx.data.load(settings(folder))


def settings(folder):
    from omegaconf import OmegaConf

    from mpx.train import CONF

    given = {"path": str(folder), "image_size": 48, "batch_size": BATCH}
    return OmegaConf.merge(OmegaConf.load(CONF / "data" / "image_folder.yaml"), given)


def taken(reader, data, epochs=2):
    loader, found = TrainLoader(reader, len(data.train), BATCH, seed=0), []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += [(x.clone(), y.clone()) for x, y in loader]
    reader.close()
    return found


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("RGB", {"quality": 90}),
        ("RGB", {"quality": 95, "subsampling": 0}),
        ("RGB", {"progressive": True}),
        ("L", {}),
        ("CMYK", {}),
    ],
)
def test_pixels_are_those_of_pillow(tmp_path, mode, how):
    paths = [str(tmp_path / f"{i}.jpg") for i in range(4)]
    for seed, path in enumerate(paths):
        picture(seed).convert(mode).save(path, **how)
    for path, image in zip(paths, decode_on(DEVICE, paths, [read(path) for path in paths]), strict=True):
        expected = pil_to_tensor(decode(path)).float()
        assert image.device == DEVICE
        assert image.shape == expected.shape
        assert (image.cpu().float() - expected).abs().mean() < 2


def test_every_loader_gives_the_same_batches(data):
    """Device and resident to the last bit."""
    ways = {
        how: taken(reader_of(how, data.train, 0, DEVICE, 2), data)
        for how in ("workers", "device", "resident")
    }
    steps = list(zip(*ways.values(), strict=True))
    assert len(steps) == 2 * (len(data.train) // BATCH)
    for (by_workers, y), (decoded, labels), (kept, again) in steps:
        assert torch.equal(y, labels)
        assert torch.equal(y, again)
        assert torch.equal(decoded, kept)
        assert (by_workers - decoded).abs().mean() < 2 / 255 / 0.229


def test_the_faster_loader_is_chosen_where_the_set_is_too_large(data, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**30))
    chosen, why = choose_loader("auto", [data.train], DEVICE, 2)
    assert chosen in ("workers", "device")
    assert why.startswith("images/s: workers ")


def test_the_speed_of_decoding(data):
    reader = reader_of("device", data.train, 0, DEVICE, "auto")
    assert images_per_s(reader, torch.arange(len(data.train)).repeat(1000)) > 100


@pytest.mark.parametrize("loader", ["auto", "device", "workers"])
def test_a_training_says_how_it_loads(train, folder, loader):
    words = ["data=image_folder", f"data.path={folder}", "data.image_size=32", f"data.batch_size={BATCH}"]
    ran = train("model=resnet20", *words, f"data.loader={loader}", "data.workers=2", *FEW_STEPS)
    assert ran.code == 0, ran.err
    said = {
        "auto": "data on the device (",
        "device": "images decoded on the GPU (data.loader=device)",
        "workers": "batches from the host (data.loader=workers)",
    }
    assert said[loader] in ran.out
    chosen = {"auto": "resident"}.get(loader, loader)
    assert ran.record["speed"]["chosen"]["loader"] == chosen
