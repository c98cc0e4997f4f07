import shutil
import time

import pytest
import torch
from few_steps import FEW_STEPS
from PIL import Image

import mpx.data
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.readers import images_per_s, reader_of
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


def batches(data, workers, *, how="workers", epochs=(0,)):
    reader = reader_of(how, data.train, 0, CPU, workers)
    loader, found = TrainLoader(reader, len(data.train), 4, seed=0), []
    try:
        for epoch in epochs:
            loader.set_epoch(epoch)
            found += list(loader)
        return found
    finally:
        reader.close()


def test_without_a_test_folder_validation_comes_from_train(cfg, folder):
    data = mpx.data.load(cfg)
    assert data.sizes == {"train": 16, "val": 4, "test": 20}
    assert torch.bincount(data.val.labels).tolist() == [2, 2]
    assert not set(data.train.paths) & set(data.val.paths)
    fill(folder / "test", count=3)
    assert mpx.data.load(cfg).sizes == {"train": 20, "val": 20, "test": 6}
    shutil.rmtree(folder / "val")
    assert mpx.data.load(cfg).sizes == {"train": 16, "val": 4, "test": 6}


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


def test_the_device_decodes_what_workers_do(cfg):
    """The decoder and the resizing round otherwise than Pillow's; the crops are the same."""
    data = mpx.data.load(cfg)
    state = torch.get_rng_state()
    ours = batches(data, 0, how="device", epochs=(0, 1))
    assert torch.equal(state, torch.get_rng_state())
    for (x, y), (other, labels) in zip(ours, batches(data, 0, epochs=(0, 1)), strict=True):
        assert torch.equal(y, labels)
        assert (x - other).abs().mean() < 2 / 255 / 0.229
    assert len(ours) == 8


def test_resident_images_are_read_once(cfg, folder):
    data = mpx.data.load(cfg)
    expected = batches(data, 2, how="device", epochs=(0, 1))
    reader = reader_of("resident", data.train, 0, CPU, 2)
    loader = TrainLoader(reader, len(data.train), 4, seed=0)
    found = list(loader)
    shutil.rmtree(folder)
    loader.set_epoch(1)
    found += list(loader)
    reader.close()
    assert all(torch.equal(x, other) for (x, _), (other, _) in zip(found, expected, strict=True))


@pytest.mark.parametrize("how", ["workers", "device", "resident"])
def test_state_continues_at_the_next_batch(cfg, how):
    data = mpx.data.load(cfg)
    whole = batches(data, 0, how=how, epochs=(0, 1))
    first, again = (
        TrainLoader(reader_of(how, data.train, 0, CPU, 0), len(data.train), 4, seed=0) for _ in range(2)
    )
    first.set_epoch(1)
    begun = iter(first)
    for _ in range(2):
        next(begun)
    again.load_state_dict(first.state_dict())
    left = list(again)
    for loader in (first, again):
        loader.reader.close()
    assert len(left) == 2
    assert all(torch.equal(x, other) for (x, _), (other, _) in zip(left, whole[6:], strict=True))


def test_the_speed_of_a_reader(cfg, monkeypatch):
    monkeypatch.setattr("mpx.data.readers.MEASURED_S", 0.05)
    train = mpx.data.load(cfg).train
    for how in ("workers", "device"):
        assert images_per_s(reader_of(how, train, 0, CPU, 2), torch.arange(16).repeat(10_000)) > 10


def test_the_speed_of_a_reader_of_which_two_batches_take_the_time(monkeypatch):
    monkeypatch.setattr("mpx.data.readers.MEASURED_S", 0.05)

    class Slow:
        def batches(self, epoch, keys):
            for key in keys:
                time.sleep(0.1)
                yield key

        def close(self):
            pass

    assert 300 < images_per_s(Slow(), torch.arange(1000)) <= 640


@pytest.mark.parametrize("loader", ["workers", "device"])
def test_evaluation_is_resize_and_centre_crop(cfg, loader):
    from torchvision.transforms import v2

    data = mpx.data.load(cfg)
    reader = reader_of(loader, data.test, 0, CPU, 0)
    x = torch.cat([x for x, _ in EvalLoader(reader, len(data.test), 7)])
    reader.close()
    how = v2.Compose(
        [v2.Resize(40), v2.CenterCrop(32), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    )
    how = v2.Compose([how, v2.Normalize(list(cfg.mean), list(cfg.std))])
    expected = torch.stack([how(Image.open(path).convert("RGB")) for path in data.test.paths])
    if loader == "workers":
        torch.testing.assert_close(x, expected)
    assert (x - expected).abs().mean() < 2 / 255 / 0.229


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("03.png", lambda content: b"no image"),
        ("03.png", lambda content: content[: len(content) // 2]),
        ("04.jpg", lambda content: content[: len(content) // 2]),
        ("04.jpg", lambda content: b""),
    ],
)
def test_a_damaged_image_is_named_before_training(cfg, folder, name, damage):
    file = folder / "train" / "dog" / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(
        UserError, match=rf"^data\.path: .*train/dog/{name} cannot be read as an image \("
    ) as caught:
        mpx.data.load(cfg)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("how", "workers"), [("workers", 0), ("workers", 2), ("device", 2)])
@pytest.mark.parametrize("name", ["03.png", "04.jpg"])
def test_an_image_that_is_damaged_later_is_named(cfg, folder, how, workers, name):
    data = mpx.data.load(cfg)
    file = folder / "train" / "dog" / name
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=rf"train/dog/{name} cannot be read as an image \(.*\): replace"):
        batches(data, workers, how=how)


def test_an_image_that_is_removed_later_is_named(cfg, folder):
    data = mpx.data.load(cfg)
    (folder / "train" / "dog" / "04.jpg").unlink()
    with pytest.raises(UserError, match=r"train/dog/04\.jpg cannot be read as an image \(.*No such file"):
        batches(data, 0, how="device")


@pytest.mark.parametrize(
    ("sizes", "more", "size", "resize"),
    [
        ([(32, 32)], {}, 32, 32),
        ([(32, 32), (36, 32)], {}, 36, 41),
        ([(42, 56)], {}, 56, 64),
        ([(300, 300)], {}, 224, 256),
        ([(32, 32)], {"image_size": 28}, 28, 32),
        ([(32, 32)], {"image_size": 28, "resize": 40}, 28, 40),
    ],
)
def test_the_images_own_size(config, tmp_path, sizes, more, size, resize):
    for number, (name, shape) in enumerate((name, shape) for name in "abcd" for shape in sizes * 10):
        (tmp_path / "set" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", shape, (number, 0, 0)).save(tmp_path / "set" / name / f"{number}.png")
    data = mpx.data.load(config("image_folder", path=str(tmp_path / "set"), batch_size=4, **more))
    assert data.spec.shape == (3, size, size)
    assert data.settings == {"image_size": size, "resize": resize}
    assert data.test.one(data.test.paths[0], None).shape == (3, size, size)
    tenth = len(sizes) * 4
    assert data.sizes == {"train": 8 * tenth, "val": tenth, "test": tenth}
    assert torch.bincount(data.test.labels).tolist() == [tenth // 4] * 4
    assert not set(data.train.paths) & {*data.val.paths, *data.test.paths}


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
        (
            lambda folder: (folder / "train").rename(folder / "training"),
            r"^data\.path: .* holds neither train/<class>/",
        ),
    ],
)
def test_wrong_folders(cfg, folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message):
        mpx.data.load(cfg)


def test_a_run_says_and_records_the_size_and_the_loader(train, tmp_path):
    for place, name in enumerate("ab"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(30):
            Image.new("RGB", (16, 16), (100 * place, i, 0)).save(tmp_path / "set" / name / f"{i}.png")
    words = ["data=image_folder", f"data.path={tmp_path}/set", "data.batch_size=9", "data.loader=device"]
    ran = train("model=mlp", *words, *FEW_STEPS)
    assert ran.code == 0, ran.err
    assert "48 training images of 16 × 16 pixels, " in ran.out
    assert ran.record["speed"]["chosen"]["loader"] == "device"
    data = ran.record["config"]["data"]
    assert (data["image_size"], data["resize"]) == (16, 16)
    assert mpx.data.load(data).spec.shape == (3, 16, 16)  # as mpx.deploy reads them


def test_a_crop_larger_than_the_image_is_refused(cfg):
    cfg.resize = 31
    with pytest.raises(UserError, match=r"^data\.resize=31 must be at least data\.image_size=32"):
        mpx.data.load(cfg)


def test_checksums_follow_names_and_sizes_and_not_the_place(cfg, folder, tmp_path):
    before = mpx.data.load(cfg).checksums
    moved = shutil.copytree(folder, tmp_path / "moved")
    cfg.path = str(moved)
    assert mpx.data.load(cfg).checksums == before
    (moved / "val" / "dog" / "00.jpg").rename(moved / "val" / "dog" / "0.jpg")
    after = mpx.data.load(cfg).checksums
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, False]
