"""MNIST, Fashion-MNIST and CIFAR-10 on the real files, and files that are missing or damaged."""

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
        ("cifar10", [2768797353, 480357616, 996130193]),
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
