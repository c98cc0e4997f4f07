"""scikit-learn's 1,797 real handwritten digits (UCI, 8×8 pixels, 0..16): they ship with the package, no download.

Split once for ever by a stratified shuffle into 360 test, 140 validation and 1,297 train samples. The order of the file goes
by writer, so a sequential split would measure strangers' handwriting instead (ResNet-20 .96 against .99).
"""

import torch

from mpx.data.images import image_data
from mpx.data.order import stratified_order
from mpx.data.splits import Data

TEST, VAL = 360, 140
SPLIT_SEED = 0  # fixed: `seed=` must never move a sample from one split to another


def load(cfg) -> Data:
    """The digits as uint8 [N, 1, 8, 8]. Raises UserError for a field out of range."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    order = stratified_order(labels, SPLIT_SEED)
    test, val, train = order[:TEST], order[TEST : TEST + VAL], order[TEST + VAL :]
    parts = [(images[index], labels[index]) for index in (train, val, test)]
    return image_data(cfg, *parts, class_names=tuple("0123456789"), top=16)
