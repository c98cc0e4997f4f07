"""Synthetic data of any shape, to measure throughput. The labels can be learned, so a falling loss shows that
training works.
"""

from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.data.order import generator
from mpx.data.spec import Spec
from mpx.data.splits import Data, Images, Texts, Windows

PAD = 0
RUN = 32  # lm: tokens that count upwards before the next random start


def load(cfg: SimpleNamespace) -> Data:
    """`samples` train samples, and an eighth of that each for validation and test."""
    return MAKERS[cfg.kind](cfg, tuple(cfg.shape), (cfg.samples, cfg.samples // 8, cfg.samples // 8))


def images(cfg: SimpleNamespace, shape: tuple[int, ...], counts: tuple[int, ...]) -> Data:
    """Noise whose brightness encodes the class, uint8, normalised with mean ½ and standard deviation ¼."""
    classes = cfg.classes

    def split(number: int, count: int) -> Images:
        random = generator("synthetic image", number)
        labels = torch.randint(0, classes, (count,), generator=random)
        noise = torch.randint(0, 64, (count, *shape), generator=random, dtype=torch.uint8)
        bright = (labels * 191 // (classes - 1)).to(torch.uint8)
        half = torch.full((shape[0], 1, 1), 0.5)
        return Images(noise.add_(bright[:, None, None, None]), labels, mean=half, std=half / 2)

    splits = [split(i, n) for i, n in enumerate(counts)]
    return Data(Spec("image", shape, classes), *splits)


def texts(cfg: SimpleNamespace, shape: tuple[int, ...], counts: tuple[int, ...]) -> Data:
    """Random tokens, about a quarter of which encode the class. Ids 1 to `classes` stand for the classes; 0
    is reserved for padding.
    """
    classes, vocab_size = cfg.classes, cfg.vocab_size

    def split(number: int, count: int) -> Texts:
        random = generator("synthetic text", number)
        labels = torch.randint(0, classes, (count,), generator=random)
        ids = torch.randint(classes + 1, vocab_size, (count, *shape), generator=random, dtype=torch.int32)
        marked = torch.rand((count, *shape), generator=random) < 0.25
        return Texts(torch.where(marked, (labels[:, None] + 1).to(torch.int32), ids), labels)

    spec = Spec("text", shape, classes, vocab_size=vocab_size, pad_id=PAD, padded=False)
    return Data(spec, *(split(i, n) for i, n in enumerate(counts)))


def streams(cfg: SimpleNamespace, shape: tuple[int, ...], counts: tuple[int, ...]) -> Data:
    """Runs of tokens that count upwards from a random start, so that a token mostly follows from the one
    before it.
    """
    vocab_size, length = cfg.vocab_size, shape[0]

    def stream(number: int, tokens: int) -> Tensor:
        starts = torch.randint(
            0, vocab_size, (-(-tokens // RUN), 1), generator=generator("synthetic lm", number)
        )
        return ((starts + torch.arange(RUN)) % vocab_size).flatten()[:tokens].to(torch.int32)

    train = Windows(stream(0, (counts[0] + 1) * length), length, shift=True)
    held_out = [Windows(stream(i, counts[i] * length + 1), length) for i in (1, 2)]
    return Data(Spec("lm", shape, vocab_size, vocab_size=vocab_size), train, *held_out)


MAKERS = {"image": images, "text": texts, "lm": streams}
