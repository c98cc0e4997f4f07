"""scikit-learn's 1,797 handwritten digits (UCI, 8×8 pixels of 0 to 16). They ship with the package, so nothing is downloaded.

A fixed stratified shuffle splits them into 360 test, 140 validation and 1,297 train samples. The file is ordered by writer, so that a
sequential split would test on the handwriting of other people.
"""

import functools
from types import SimpleNamespace

import torch

from mpx.data.images import image_data
from mpx.data.order import SPLIT_SEED, stratified_order
from mpx.data.splits import Data

TEST, VAL = 360, 140


def load(cfg: SimpleNamespace) -> Data:
    images, labels = _file()
    order = stratified_order(labels, SPLIT_SEED)
    test, val, train = order[:TEST], order[TEST : TEST + VAL], order[TEST + VAL :]
    parts = [(images[index], labels[index]) for index in (train, val, test)]
    return image_data(cfg, *parts, classes=10, top=16)


@functools.cache
def _file() -> tuple[torch.Tensor, torch.Tensor]:
    """Images uint8 [N, 1, 8, 8], labels. Reading their text takes a tenth of a short run, and a process may have many."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return torch.from_numpy(bunch.images).to(torch.uint8)[:, None], torch.from_numpy(bunch.target).long()
