"""MNIST, Fashion-MNIST and CIFAR-10 on the real files; damaged copies of small files."""

import gzip
import os
import pickle
import shutil
import struct

import numpy as np
import pytest
import torch

import mpx.data
from mpx.data import mnist
from mpx.data.cifar10 import read_batch
from mpx.data.idx import read_idx
from mpx.data.pickles import read_pickle
from mpx.errors import UserError


@pytest.mark.parametrize(("name", "folder"), [("fashion_mnist", "FashionMNIST"), ("mnist", "MNIST")])
def test_real_idx_sets(config, real, name, folder):
    data = mpx.data.load(config(name, root=str(real(folder).parent)))
    assert data.sizes == {"train": 58_000, "val": 2_000, "test": 10_000}
    assert data.spec.shape == (1, 28, 28)
    check_statistics(data)


def test_real_cifar10(config, cifar_root):
    data = mpx.data.load(config("cifar10", root=str(cifar_root)))
    assert data.sizes == {"train": 48_000, "val": 2_000, "test": 10_000}
    assert data.spec.shape == (3, 32, 32)
    assert data.test.labels[0] == 3  # a cat, the best known picture of the test set
    check_statistics(data)


def check_statistics(data):
    """Mean and std of the YAML are the train split's; validation has every class in its share."""
    pixels = data.train.images[::5].float().div_(255)
    torch.testing.assert_close(data.train.mean.flatten(), pixels.mean((0, 2, 3)), atol=2e-3, rtol=0)
    torch.testing.assert_close(data.train.std.flatten(), pixels.std((0, 2, 3)), atol=2e-3, rtol=0)
    ratio = torch.bincount(data.val.labels) / torch.bincount(data.train.labels)
    assert (ratio - 2_000 / len(data.train)).abs().max() < 1e-3
    assert data.val.augment == data.test.augment == "none"


def write_idx(path, values):
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.tobytes())
    return path


def test_idx_plain_and_gzipped(tmp_path):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    plain = write_idx(tmp_path / "a", values)
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        assert torch.equal(read_idx(path, (2, 3, 4)), torch.from_numpy(values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"\1" + b[1:], "starts with 01000803 where an idx file of these has 00000803"),
        (lambda b: b"", "starts with nothing where"),
        (lambda b: b[:7], "ends inside its header, after 7 of 16 bytes"),
        (lambda b: b[:7] + b"\3" + b[8:], "says that it holds 3x3x4 values where 2x3x4 are expected"),
        (lambda b: b[:-1], "holds 23 values where its header promises 24"),
        (lambda b: b + b"\0", "holds 25 values where its header promises 24"),
    ],
)
def test_damaged_idx(tmp_path, damage, message):
    path = write_idx(tmp_path / "images", np.zeros((2, 3, 4), dtype=np.uint8))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=rf"^data\.root: .*images {message}.*: delete the file and fetch it again") as caught:
        read_idx(path, (2, 3, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no gzip", lambda b: b[:-20] + bytes(12) + b[-8:]])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(1000))))
    with pytest.raises(UserError, match=r"^data file .*images\.gz is not a whole gzip file \(.*\): delete it and fetch it again$"):
        read_idx(path, (10,))


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """MNIST's four files with 40 and 20 images."""
    sizes = {part: (*names, count) for (part, (*names, _)), count in zip(mnist.FILES.items(), (40, 20), strict=True)}
    monkeypatch.setattr(mnist, "FILES", sizes)
    where = tmp_path / "root" / "MNIST" / "raw"
    where.mkdir(parents=True)
    for images, labels, count in sizes.values():
        write_idx(where / images, np.zeros((count, 28, 28), dtype=np.uint8))
        write_idx(where / labels, np.arange(count, dtype=np.uint8) % 10)
    return where


def test_labels_out_of_range_and_missing_classes(config, small_mnist):
    cfg = config("mnist", val_size=10, batch_size=10)
    assert mpx.data.load(cfg).sizes == {"train": 30, "val": 10, "test": 20}
    write_idx(small_mnist / "train-labels-idx1-ubyte", np.arange(40, dtype=np.uint8) % 11)
    with pytest.raises(UserError, match="train-labels-idx1-ubyte holds the label 10 where 0 to 9 are allowed"):
        mpx.data.load(cfg)
    write_idx(small_mnist / "train-labels-idx1-ubyte", np.arange(40, dtype=np.uint8) % 9)
    with pytest.raises(UserError, match="train-labels-idx1-ubyte does not hold all ten classes"):
        mpx.data.load(cfg)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("fashion_mnist", "FashionMNIST/raw/train-images-idx3-ubyte"),
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
    ],
)
def test_missing_files_are_named(config, tmp_path, name, file):
    (tmp_path / "root" / file).parent.mkdir(parents=True)
    with pytest.raises(UserError, match=rf"^data\.root: .*{file} is missing, plain or \.gz: put it there, .*data\.download=true"):
        mpx.data.load(config(name, download=False))


def test_one_missing_file_of_four(config, small_mnist):
    (small_mnist / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="raw/t10k-labels-idx1-ubyte is missing"):
        mpx.data.load(config("mnist", download=False, val_size=10))


def cifar_content(**changes):
    content = {b"data": np.zeros((10_000, 3072), dtype=np.uint8), b"labels": [i % 10 for i in range(10_000)]}
    return content | {key.encode(): value for key, value in changes.items()}


def test_cifar_pixels_are_planes(tmp_path):
    content = cifar_content()
    content[b"data"][3, 1024 + 32 * 5 + 7] = 200  # image 3, green, row 5, column 7
    (tmp_path / "batch").write_bytes(pickle.dumps(content))
    images, labels = read_batch(tmp_path / "batch")
    assert images[3, 1, 5, 7] == 200
    assert images.sum() == 200
    assert labels[:11].tolist() == [*range(10), 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds no images and labels"),
        ({b"data": 1}, "holds no images and labels"),
        (cifar_content(data=np.zeros((9_999, 3072), dtype=np.uint8)), r"holds pixels of shape \(9999, 3072\) where bytes of"),
        (cifar_content(data=b"pixels"), "holds pixels of shape None"),
        (cifar_content(labels=[0] * 9_999), "does not hold 10000 labels from 0 to 9"),
        (cifar_content(labels=[10] * 10_000), "does not hold 10000 labels from 0 to 9"),
    ],
)
def test_wrong_cifar_content(tmp_path, content, message):
    (tmp_path / "batch").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=rf"^data\.root: .*batch {message}"):
        read_batch(tmp_path / "batch")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/mpx-test-evil-pickle",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_cannot_run_code(tmp_path, protocol):
    with pytest.raises(UserError, match=r"is not a data pickle \(it asks for (posix|os)\.mkdir, which no data file needs\)"):
        read_pickle(pickle.dumps([Evil()], protocol), "batch")
    assert not os.path.exists("/tmp/mpx-test-evil-pickle")


def test_object_arrays_and_nested_names_are_refused():
    for harmful in (b"cbuiltins\neval\n.", b"cnumpy\nload\n.", b"cnumpy\nndarray.tofile\n.", b"cos\nsystem\n(S'true'\ntR."):
        with pytest.raises(UserError, match="is not a data pickle"):
            read_pickle(harmful, "batch")


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x01(", b"hello", pickle.dumps(cifar_content())[:5000]])
def test_truncated_pickle(content):
    with pytest.raises(UserError, match=r"^data\.root: batch is not a data pickle \(.+\): delete the file") as caught:
        read_pickle(content, "batch")
    assert "\n" not in str(caught.value)


def test_cifar_refuses_a_file_on_its_way_through_load(config, tmp_path):
    where = tmp_path / "root" / "cifar-10-batches-py"
    where.mkdir(parents=True)
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (where / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="data_batch_1 is not a data pickle"):
        mpx.data.load(config("cifar10"))
    shutil.rmtree(where)
