"""MNIST, Fashion-MNIST and CIFAR-10 on the real files, and files that are missing or damaged."""

import gzip
import os
import pickle

import pytest
import torch

import mpx.data
from mpx.errors import UserError

FOLDERS = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw", "cifar10": "cifar-10-batches-py"}
NAMES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


@pytest.mark.parametrize(
    ("name", "checksums"),
    [
        ("fashion_mnist", [2342992898, 2940559430, 2784682106]),
        ("mnist", [2062973447, 2033271875, 1634826521]),
        pytest.param("cifar10", [2768797353, 480357616, 996130193], marks=pytest.mark.slow),
    ],
)
def test_real_sets(config, real, request, name, checksums):
    """Committed results are of these samples, in this order, scaled with these means."""
    root = request.getfixturevalue("cifar_root") if name == "cifar10" else real(FOLDERS[name]).parents[1]
    data = mpx.data.load(config(name, root=str(root), download=False))
    assert data.checksums == checksums
    pixels = data.train.images[::5].float().div_(255)
    torch.testing.assert_close(data.train.mean.flatten(), pixels.mean((0, 2, 3)), atol=2e-3, rtol=0)
    torch.testing.assert_close(data.train.std.flatten(), pixels.std((0, 2, 3)), atol=2e-3, rtol=0)
    ratio = torch.bincount(data.val.labels) / torch.bincount(data.train.labels)
    assert (ratio - 2_000 / len(data.train)).abs().max() < 1e-3
    assert data.val.augment == data.test.augment == "none"


@pytest.mark.parametrize(
    ("name", "file"),
    [("mnist", NAMES[0]), ("fashion_mnist", NAMES[0]), ("cifar10", "data_batch_1")],
)
def test_a_missing_file_is_named(config, tmp_path, name, file):
    (tmp_path / "root" / FOLDERS[name]).mkdir(parents=True)
    with pytest.raises(
        UserError,
        match=rf"^data\.root: .*{file}.* is missing: put it there, "
        r".*data\.download=true",
    ):
        mpx.data.load(config(name, download=False))


def test_files_of_bytes(config, tmp_path):
    (raw := tmp_path / "root" / FOLDERS["mnist"]).mkdir(parents=True)
    images = torch.arange(40 * 28 * 28).reshape(40, 28, 28).to(torch.uint8)
    labels = (torch.arange(40) % 10).to(torch.uint8)
    for name in NAMES:
        values = images if "images" in name else labels
        sides = b"".join(side.to_bytes(4, "big") for side in values.shape)
        (raw / name).write_bytes(bytes([0, 0, 8, values.dim()]) + sides + values.numpy().tobytes())
    cfg = config("mnist", val_size=10, download=False)
    data = mpx.data.load(cfg)
    assert data.sizes == {"train": 30, "val": 10, "test": 40}
    assert torch.equal(data.test.images[:, 0], images)
    assert torch.equal(data.test.labels, labels.long())
    whole = (raw / NAMES[2]).read_bytes()
    for damaged in (b"", whole[:10], whole[:-1], (raw / NAMES[3]).read_bytes()):
        (raw / NAMES[2]).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{NAMES[2]} is damaged \("):
            mpx.data.load(cfg)
    (raw / NAMES[2]).unlink()
    (raw / f"{NAMES[2]}.gz").write_bytes(gzip.compress(whole))
    with pytest.raises(UserError, match=r"\.gz is damaged \(its MD5 sum is not the publisher's"):
        mpx.data.load(cfg)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/mpx-test-evil-pickle",)


def test_a_pickle_that_is_not_the_publishers_is_not_loaded(config, tmp_path):
    (where := tmp_path / "root" / FOLDERS["cifar10"]).mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (where / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match=r"batches-py is damaged \(a file's MD5 sum is not"):
        mpx.data.load(config("cifar10", download=False))
    assert not os.path.exists("/tmp/mpx-test-evil-pickle")
