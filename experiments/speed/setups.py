"""What is trained: the four models at the sizes of the targets, and tiny ones for a trial."""

from dataclasses import dataclass

import torch

IMAGES = {"resnet50": ([3, 224, 224], 1000, 256, 8, 40), "resnet18": ([3, 32, 32], 10, 512, 48, 200)}
TEXTS = {"bert_small": ([128], 2, 256, 96, 120), "lstm": ([128], 2, 256, 96, 120)}
FULL = IMAGES | TEXTS  # shape, classes, batch, batches in an epoch, measured steps
TINY = {
    "resnet50": ([3, 32, 32], 4, 4, 8, 4), "resnet18": ([3, 8, 8], 4, 4, 8, 4), "bert_small": ([8], 2, 4, 8, 4), "lstm": ([8], 2, 4, 8, 4),
}  # fmt: skip
MODELS = tuple(FULL)
TITLES = {"resnet50": "ResNet-50", "resnet18": "ResNet-18", "bert_small": "BERT-small", "lstm": "LSTM"}


@dataclass(frozen=True)
class Setup:
    model: str
    precision: str  # a mode of mpx
    shape: list[int]  # of one sample: [channels, height, width] or [tokens]
    classes: int
    batch: int
    batches: int  # in an epoch
    steps: int  # measured
    tiny: bool = False
    vocabulary: int = 30522
    hidden: int = 512
    layers: int = 4  # of BERT

    @property
    def text(self) -> bool:
        return len(self.shape) == 1


def setup(model: str, precision: str, *, tiny: bool) -> Setup:
    small = {"tiny": True, "vocabulary": 50, "hidden": 64, "layers": 1} if tiny else {}
    shape, classes, batch, batches, steps = (TINY if tiny else FULL)[model]
    if precision == "fp32" and not tiny:
        steps //= 2
    return Setup(model, precision, shape, classes, batch, batches, steps, **small)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
