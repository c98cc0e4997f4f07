"""CIFAR-10: 50,000 train and 10,000 test colour images of 32×32 pixels in ten classes.

Files: the "python version", `<data.root>/cifar-10-batches-py/data_batch_1` to `_5` and `test_batch`.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from mpx.data import download
from mpx.data.files import find, folder, need, read_bytes
from mpx.data.idx import damaged
from mpx.data.images import image_data
from mpx.data.order import hold_out
from mpx.data.pickles import read_pickle
from mpx.data.splits import Data
from mpx.settings.data import IMAGES

COUNT, SHAPE = 10_000, (3, 32, 32)  # images per file, shape of an image
TRAIN = [f"data_batch_{i}" for i in range(1, 1 + IMAGES["cifar10"].train // COUNT)]


def load(cfg: SimpleNamespace) -> Data:
    """Images uint8 [N, 3, 32, 32]; the end of the train set is held out for validation, stratified. Raises UserError for files."""
    where = folder(cfg) / "cifar-10-batches-py"
    missing = [name for name in [*TRAIN, "test_batch"] if find(where, name) is None]
    if missing and cfg.download:
        download.torchvision_set("CIFAR10", folder(cfg), f"{where.name}/{missing[0]}")
    read = [read_batch(need(where, name)) for name in TRAIN]
    images, labels = torch.cat([x for x, _ in read]), torch.cat([y for _, y in read])
    train, val = hold_out(labels, cfg.val_size)
    parts = [(images[index], labels[index]) for index in (train, val)]
    return image_data(cfg, *parts, read_batch(need(where, "test_batch")), classes=10)


def read_batch(path: Path) -> tuple[Tensor, Tensor]:
    """Images uint8 [10000, 3, 32, 32] and labels int64 [10000] of one file. Raises UserError."""
    content = read_pickle(read_bytes(path), path)
    if not isinstance(content, dict) or not {b"data", b"labels"} <= content.keys():
        raise damaged(path, "holds no images and labels")
    pixels, labels = content[b"data"], content[b"labels"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (COUNT, 3 * 32 * 32):
        raise damaged(path, f"holds pixels of shape {getattr(pixels, 'shape', None)} where bytes of ({COUNT}, 3072) are expected")
    if not isinstance(labels, list) or len(labels) != COUNT or not all(type(c) is int and 0 <= c <= 9 for c in labels):
        raise damaged(path, f"does not hold {COUNT} labels from 0 to 9")
    return torch.from_numpy(pixels.copy()).view(COUNT, *SHAPE), torch.tensor(labels)
