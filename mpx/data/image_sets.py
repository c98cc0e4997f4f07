"""Image sets that fit in memory: scikit-learn's digits, MNIST, Fashion-MNIST and CIFAR-10."""

import functools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from mpx.data.files import downloading, find, folder, missing, need, read_bytes
from mpx.data.order import SPLIT_SEED, hold_out, stratified_order
from mpx.data.spec import Spec
from mpx.data.splits import Data, Images
from mpx.errors import UserError, first_line

Part = tuple[Tensor, Tensor]  # uint8 images [N, C, H, W], int64 labels [N]
DIGITS_TEST, DIGITS_VAL = 360, 140  # samples
CLASSES = 10


def load_digits(cfg: SimpleNamespace) -> Data:
    """scikit-learn's 1,797 handwritten digits (UCI, 8×8 pixels of 0 to 16), which ship with the package.

    A fixed stratified shuffle splits them into 360 test, 140 validation and 1,297 train samples. The file is
    ordered by writer, so that a sequential split would test on the handwriting of other people.
    """
    images, labels = _digits()
    order = stratified_order(labels, SPLIT_SEED)
    held_out = DIGITS_TEST + DIGITS_VAL
    parts = order[held_out:], order[DIGITS_TEST:held_out], order[:DIGITS_TEST]
    train, val, test = ((images[index], labels[index]) for index in parts)
    return image_data(cfg, train, val, test, top=16)


@functools.cache
def _digits() -> Part:
    """Reading the text of the file takes a tenth of a short run, and a process may have many."""
    from sklearn.datasets import load_digits as read

    bunch = read()
    return torch.from_numpy(bunch.images).to(torch.uint8)[:, None], torch.from_numpy(bunch.target).long()


def load_mnist(cfg: SimpleNamespace) -> Data:
    """MNIST or Fashion-MNIST: 60,000 train and 10,000 test grey images of 28×28 pixels in ten classes.

    Files as torchvision has them, packed or not: `<data.root>/MNIST/raw/train-images-idx3-ubyte[.gz]`.
    """
    from torchvision import datasets

    kind = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[cfg.name]
    raw = folder(cfg) / kind.__name__ / "raw"
    sums = {name.removesuffix(".gz"): md5 for name, md5 in kind.resources}  # of the packed files
    if absent := [name for name in sums if find(raw, name) is None]:
        _fetch(kind, cfg, raw / f"{absent[0]}.gz")
    x, y, test_x, test_y = (_array(need(raw, name), md5) for name, md5 in sums.items())
    return published(cfg, (x[:, None], y.long()), (test_x[:, None], test_y.long()))


def _array(path: Path, md5: str) -> Tensor:
    """Of images or labels. A file's bytes: two zeros, the type, the number of sides; each side in four bytes;
    the values.
    """
    from torchvision.datasets.utils import check_integrity

    if path.suffix == ".gz" and not check_integrity(str(path), md5):
        raise _damaged(path, "its MD5 sum is not the publisher's")
    content = read_bytes(path)
    try:
        sides = np.frombuffer(content, ">i4", 3 if "images" in path.name else 1, offset=4)
        return torch.from_numpy(
            np.frombuffer(content, np.uint8, offset=4 + sides.nbytes).reshape(sides).copy()
        )
    except ValueError as error:
        raise _damaged(path, first_line(error)) from error


def load_cifar10(cfg: SimpleNamespace) -> Data:
    """CIFAR-10: 50,000 train and 10,000 test colour images of 32×32 pixels in ten classes.

    Files: the "python version", `<data.root>/cifar-10-batches-py/`. torchvision unpickles them only if their
    MD5 sums are the publisher's, so that no other code runs.
    """
    from torchvision.datasets import CIFAR10

    where = folder(cfg) / CIFAR10.base_folder
    lists = [*CIFAR10.train_list, *CIFAR10.test_list]
    names = [*(name for name, _ in lists), CIFAR10.meta["filename"]]
    absent = [where / name for name in names if not (where / name).is_file()]
    if absent:
        _fetch(CIFAR10, cfg, absent[0])
    try:
        parts = [CIFAR10(str(folder(cfg)), train=train) for train in (True, False)]
    except RuntimeError as error:
        raise _damaged(where, "a file's MD5 sum is not the publisher's") from error
    train, test = (
        (torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets)) for part in parts
    )
    return published(cfg, train, test)


def _fetch(kind: type, cfg: SimpleNamespace, path: Path) -> None:
    """Let torchvision download a set of which `path` is missing, and check its MD5 sums. Raises UserError."""
    if not cfg.download:
        raise missing(path)
    with downloading(path):
        kind(str(folder(cfg)), download=True)


def published(cfg: SimpleNamespace, train: Part, test: Part) -> Data:
    """The end of the published train set is held out for validation, stratified."""
    kept, held_out = ((train[0][index], train[1][index]) for index in hold_out(train[1], cfg.val_size))
    return image_data(cfg, kept, held_out, test)


def image_data(cfg: SimpleNamespace, train: Part, val: Part, test: Part, top: int = 255) -> Data:
    """The splits, by the settings image_size, mean, std, augment, pad, crop and cutout. top: of the brightest
    pixel.
    """
    parts = [train, val, test]
    if cfg.image_size is not None:
        parts = [(resize(images, cfg.image_size, top), labels) for images, labels in parts]
        top = 255
    mean, std = per_channel(cfg.mean), per_channel(cfg.std)
    random = {"augment": cfg.augment, "pad": cfg.pad, "crop": cfg.crop, "cutout": cfg.cutout}
    splits = [Images(x, y, mean, std, top, **(random if i == 0 else {})) for i, (x, y) in enumerate(parts)]
    return Data(Spec("image", tuple(splits[0].images.shape[1:]), CLASSES), *splits)


def per_channel(values: list[float]) -> Tensor:
    """One number per channel as float32 [C, 1, 1]."""
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def resize(images: Tensor, size: int, top: int) -> Tensor:
    """Squares of `size` pixels, 0..255, made in pieces that bound the memory. images: uint8 [N, C, H, W] in
    0..top.
    """
    from torchvision.transforms.v2 import functional as v2

    def piece(x: Tensor) -> Tensor:
        bright = x.to(torch.float32) * (255 / top)
        return v2.resize(bright, [size, size], antialias=True).round().clamp(0, 255).to(torch.uint8)

    return torch.cat([piece(x) for x in images.split(1024)])


def _damaged(path: Path, what: str) -> UserError:
    return UserError(
        f"data.root: {path} is damaged ({what}): delete it and fetch it again (data.download=true)"
    )
