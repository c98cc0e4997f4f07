import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import mpx.data
from mpx.data.image_folder import decode
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.readers import WorkerReader
from mpx.errors import UserError

CPU = torch.device("cpu")


def fill(where, classes=("cat", "dog"), count=10):
    for number, name in enumerate(classes):
        (where / name).mkdir(parents=True)
        for i in range(count):
            noise = torch.randint(
                0,
                256,
                (40, 60, 3),
                dtype=torch.uint8,
                generator=torch.Generator().manual_seed(100 * number + i),
            )
            Image.fromarray(noise.numpy()).save(where / name / f"{i:02d}.{'png' if i % 2 else 'jpg'}")


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        fill(tmp_path / "images" / split)
    return tmp_path / "images"


@pytest.fixture
def cfg(config, folder):
    return config(
        "image_folder",
        path=str(folder),
        image_size=32,
        resize=40,
        batch_size=4,
        eval_batch_size=4,
        val_share=0.2,
    )


def batches(data, workers, epoch=0):
    reader = WorkerReader(data.train, 0, CPU, workers)
    loader = TrainLoader(reader, len(data.train), 4, seed=0)
    loader.set_epoch(epoch)
    try:
        return list(loader)
    finally:
        reader.close()


def test_without_a_test_folder_validation_comes_from_train(cfg, folder):
    data = mpx.data.load(cfg)
    assert data.sizes == {"train": 16, "val": 4, "test": 20}
    assert torch.bincount(data.val.labels).tolist() == [2, 2]
    assert not set(data.train.paths) & set(data.val.paths)
    fill(folder / "test", count=3)
    assert mpx.data.load(cfg).sizes == {"train": 20, "val": 20, "test": 6}


def test_a_crop_depends_on_seed_epoch_and_sample_not_on_workers(cfg):
    data = mpx.data.load(cfg)
    state = torch.get_rng_state()
    alone, shared = batches(data, 0), batches(data, 2)
    assert torch.equal(state, torch.get_rng_state())
    for (x, y), (other, labels) in zip(alone, shared, strict=True):
        assert torch.equal(x, other)
        assert torch.equal(y, labels)
    assert alone[0][0].shape == (4, 3, 32, 32)
    assert alone[0][0].dtype == torch.float32
    a, b = (
        data.train.raw(torch.tensor([0]), torch.tensor([[1]])),
        data.train.raw(torch.tensor([0]), torch.tensor([[2]])),
    )
    assert not torch.equal(a[0], b[0])


def test_evaluation_is_resize_and_centre_crop(cfg):
    from torchvision.transforms import v2

    data = mpx.data.load(cfg)
    reader = WorkerReader(data.test, 0, CPU, 0)
    x = torch.cat([x for x, _ in EvalLoader(reader, len(data.test), 7)])
    how = v2.Compose(
        [v2.Resize(40), v2.CenterCrop(32), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )
    how = v2.Compose([how, v2.Normalize(list(cfg.mean), list(cfg.std))])
    expected = torch.stack([how(Image.open(path).convert("RGB")) for path in data.test.paths])
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_named(cfg, folder, workers):
    data = mpx.data.load(cfg)
    (folder / "train" / "dog" / "03.png").write_bytes(b"no image")
    with pytest.raises(
        UserError,
        match=r"^data\.path: .*train/dog/03\.png cannot be read as an image "
        r"\(.*\): replace or remove",
    ) as caught:
        batches(data, workers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.int32])
def test_images_of_more_than_8_bits_are_refused(tmp_path, dtype):
    """Pillow would make all but the darkest pixels 255."""
    Image.fromarray(np.ones((40, 60), dtype)).save(tmp_path / "deep.tif")
    with pytest.raises(
        UserError,
        match=r"deep\.tif cannot be read as an image \(its pixels have 16 or 32 "
        r"bits, where 8",
    ):
        decode(str(tmp_path / "deep.tif"))


def empty(folder):
    for path in (folder / "train" / "dog").iterdir():
        path.unlink()


def surplus(folder):
    fill(folder / "val", ("cow",))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (empty, r"^data\.path: .*train has no images in .*Found no valid file for the classes dog"),
        (surplus, r"^data\.path: the class cow is in only one of .*val and train/"),
    ],
)
def test_wrong_folders(cfg, folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message):
        mpx.data.load(cfg)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("resize", 31, r"^data\.resize=31 must be at least data\.image_size=32"),
        ("image_size", None, r"^data\.image_size=null is not for data=image_folder"),
    ],
)
def test_fields_out_of_range(cfg, field, value, message):
    cfg[field] = value
    with pytest.raises(UserError, match=message):
        mpx.data.load(cfg)


def test_checksums_follow_names_and_sizes_and_not_the_place(cfg, folder, tmp_path):
    before = mpx.data.load(cfg).checksums
    moved = shutil.copytree(folder, tmp_path / "moved")
    cfg.path = str(moved)
    assert mpx.data.load(cfg).checksums == before
    (moved / "val" / "dog" / "00.jpg").rename(moved / "val" / "dog" / "0.jpg")
    after = mpx.data.load(cfg).checksums
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, False]
