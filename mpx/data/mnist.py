"""MNIST and Fashion-MNIST: 60,000 train and 10,000 test grey images of 28×28 pixels in ten classes.

Files in torchvision's layout, `<data.root>/MNIST/raw/train-images-idx3-ubyte[.gz]` and so on.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.data import download
from mpx.data.files import find, folder, need
from mpx.data.idx import damaged, read_idx
from mpx.data.images import image_data
from mpx.data.order import hold_out
from mpx.data.splits import Data
from mpx.settings.data import IMAGES

TRAIN, TEST, SIZE = IMAGES["mnist"].train, 10_000, IMAGES["mnist"].side
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", TRAIN),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", TEST),
}
TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}


def load(cfg: SimpleNamespace) -> Data:
    """Images uint8 [N, 1, 28, 28]; the end of the train set is held out for validation, stratified. Raises UserError for files."""
    where = folder(cfg) / TORCHVISION[cfg.name] / "raw"
    missing = [name for *names, _ in FILES.values() for name in names if find(where, name) is None]
    if missing and cfg.download:
        download.torchvision_set(TORCHVISION[cfg.name], folder(cfg), f"{TORCHVISION[cfg.name]}/raw/{missing[0]}")
    images, labels = read_part(where, "train")
    train, val = hold_out(labels, cfg.val_size)
    parts = [(images[index], labels[index]) for index in (train, val)]
    return image_data(cfg, *parts, read_part(where, "test"), classes=10)


def read_part(where: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 1, 28, 28] and labels int64 [N] of "train" or "test". Raises UserError."""
    image_name, label_name, count = FILES[part]
    images = read_idx(need(where, image_name), (count, SIZE, SIZE))
    path = need(where, label_name)
    labels = read_idx(path, (count,)).long()
    if int(labels.max()) > 9:
        raise damaged(path, f"holds the label {int(labels.max())} where 0 to 9 are allowed")
    if len(torch.bincount(labels, minlength=10).nonzero()) < 10:
        raise damaged(path, "does not hold all ten classes")
    return images[:, None], labels
