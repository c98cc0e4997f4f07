"""The user's own data: `data=custom data._target_=my_data.make_data`, a function that returns the train, validation and test data.

Each is a map-style Dataset, which makes its samples one by one in worker processes, or a pair of tensors (x, y), which stay in memory.
"""

import zlib
from collections.abc import Sized
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from mpx.data.custom_checks import check_ids, check_range, check_x, of_classes, pair, wanted
from mpx.data.encode import fills_left
from mpx.data.order import generator, seeded
from mpx.data.splits import Data, InMemory
from mpx.errors import UserError
from mpx.settings import target
from mpx.spec import NO_LABEL, Spec

SPLITS = ("train", "validation", "test")
FIRST = 100  # samples of a Dataset that tell on which side texts are filled up
HASHED = 1000  # samples of a Dataset that its hash is of; making all of a large one takes hours


@dataclass(frozen=True)
class Tensors(InMemory):
    """x and y in memory, as they are."""

    x: Tensor  # [N, …]
    y: Tensor  # [N, …]
    kind: str  # image or text

    @property
    def shapes(self) -> tuple[list[int], list[int]]:
        """The shapes of one x and one y."""
        return list(self.x.shape[1:]), list(self.y.shape[1:])

    @property
    def first(self) -> Tensor:
        """x of the samples that tell on which side texts are filled up: all."""
        return self.x

    def __len__(self) -> int:
        return len(self.x)

    def raw(self, index: Tensor, rows: None) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def finish(self, x: Tensor, y: Tensor, rows: None) -> tuple[Tensor, Tensor]:
        return finished(x, self.kind), y


@dataclass(frozen=True)
class Samples:
    """A user's Dataset. A sample's random choices depend on the run's seed, the epoch and the sample only."""

    dataset: Dataset
    shapes: tuple[list[int], list[int]]  # of one x and one y
    kind: str  # image or text
    name: str  # for errors
    task: str
    classes: int | None  # labels are below it; None: they are not classes
    vocab_size: int | None  # token ids are below it; None: an image has none

    nbytes = None  # the samples are made when they are needed

    @property
    def first(self) -> Tensor:
        return torch.stack([self.one(place, place)[0] for place in range(min(FIRST, len(self)))])

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def checksum(self) -> int:
        """The checksum of at most HASHED samples, spread evenly. Every draw is seeded, so that random samples are the same each time."""
        found = zlib.crc32(str(len(self)).encode())
        for place in range(0, len(self), -(-len(self) // HASHED)):
            for part in self.one(place, place):
                found = zlib.crc32(part.contiguous().numpy(), found)
        return found

    def plan(self, seed: int, epoch: int) -> Tensor:
        """A random seed for each sample, int64 [N, 1]."""
        return torch.randint(0, 2**32, (len(self), 1), generator=generator(seed, "custom", epoch))

    def raw(self, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Raises UserError for a sample that is not like the others."""
        made = [self.one(i, seed) for i, seed in zip(index.tolist(), rows.flatten().tolist(), strict=True)]
        return torch.stack([x for x, _ in made]), torch.stack([y for _, y in made])

    def finish(self, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return finished(x, self.kind), y

    def one(self, place: int, seed: int) -> tuple[Tensor, Tensor]:
        where = f"{self.name}[{place}]"
        with seeded(seed):
            x, y = pair(self.dataset[place], where)
        y = wanted(y[None], self.task, where)[0]
        if (list(x.shape), list(y.shape)) != self.shapes:
            raise UserError(
                f"data._target_: {where} has x of shape {list(x.shape)} and y of {list(y.shape)}, the first sample {self.shapes[0]} and "
                f"{self.shapes[1]}: make all samples alike"
            )
        check_range(y, self.task, self.classes, where)
        if self.vocab_size is not None:
            check_ids(x, self.vocab_size, where)
        return x, y


def finished(x: Tensor, kind: str) -> Tensor:
    """As models take it: pixels of 8 bits as numbers from 0 to 1, other pixels in FP32, token ids in 64 bits."""
    if kind == "text":
        return x.long()
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def load(cfg: SimpleNamespace) -> Data:
    """Call the user's function. Raises UserError for what it returns if that cannot be used."""
    path, kwargs = vars(cfg)["_target_"], cfg.kwargs or {}
    with seeded(0):  # the same data for every seed of a study
        made = target.build("data._target_", {**kwargs, "_target_": path}, "data.kwargs")
    if not isinstance(made, (tuple, list)) or len(made) != len(SPLITS):
        size = f" of {len(made)}" if isinstance(made, Sized) else ""
        raise UserError(
            f"data._target_={path} returned a {type(made).__name__}{size}; it must return three: the train, validation and test data."
        )
    splits = [split(part, name, cfg) for part, name in zip(made, SPLITS, strict=True)]
    return Data(spec_of(cfg, splits), *splits)


def split(part: Any, name: str, cfg: SimpleNamespace) -> Tensors | Samples:
    """One split as mpx reads it. Raises UserError."""
    if isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], (Tensor, np.ndarray)):
        return in_memory(*pair(part, f"the {name} data"), name, cfg)
    if isinstance(part, IterableDataset) or not (hasattr(part, "__getitem__") and hasattr(part, "__len__")):
        raise UserError(
            f"data._target_: the {name} data are a {type(part).__name__}; a Dataset with __len__ and __getitem__, or a pair of tensors "
            "(x, y), is needed"
        )
    if len(part) == 0:
        raise UserError(f"data._target_: the {name} data are empty")
    for key, needed in (("classes", of_classes(cfg.task)), ("vocab_size", cfg.kind == "text")):
        if needed and getattr(cfg, key) is None:
            raise UserError(f"data.{key} is not set, and a Dataset does not tell it. Give it, for example data.{key}=10.")
    x, y = pair(part[0], f"{name}[0]")
    check_x(x, name, cfg)
    y = wanted(y[None], cfg.task, f"{name}[0]")[0]
    classes, vocab_size = cfg.classes if of_classes(cfg.task) else None, cfg.vocab_size if cfg.kind == "text" else None
    return Samples(part, (list(x.shape), list(y.shape)), cfg.kind, name, cfg.task, classes, vocab_size)


def in_memory(x: Tensor, y: Tensor, name: str, cfg: SimpleNamespace) -> Tensors:
    if len(x) == 0 or len(x) != len(y):
        raise UserError(f"data._target_: the {name} data have {len(x)} x and {len(y)} y: give one y for each x, and at least one")
    check_x(x[0], name, cfg)
    return Tensors(x.float() if x.is_floating_point() else x, wanted(y, cfg.task, f"the {name} data"), cfg.kind)


def spec_of(cfg: SimpleNamespace, splits: list[Tensors | Samples]) -> Spec:
    """What models see. Raises UserError for splits that differ, and for labels that are not classes."""
    shape, width = splits[0].shapes
    for part, name in zip(splits, SPLITS, strict=True):
        if part.shapes != (shape, width):
            raise UserError(
                f"data._target_: the {name} data have x of shape {part.shapes[0]} and y of {part.shapes[1]}, the train data {shape} and "
                f"{width}: make them alike"
            )
    tensors = {f"the {name} data": part for part, name in zip(splits, SPLITS, strict=True) if isinstance(part, Tensors)}
    classes = width[0] if not of_classes(cfg.task) else cfg.classes or max(2, 1 + int(splits[0].y.max()))
    for where, part in tensors.items():
        check_range(part.y, cfg.task, classes if of_classes(cfg.task) else None, where)
        if cfg.task == "tokens" and not (part.y != NO_LABEL).any():
            raise UserError(f"data._target_: no token of {where} has a label: every y is {NO_LABEL}. Label some.")
    tokens = {}
    if cfg.kind == "text":
        size = cfg.vocab_size or 1 + max(cfg.pad_id or 0, *(int(part.x.max()) for part in tensors.values()))
        for where, part in tensors.items():
            check_ids(part.x, size, where)
        left = cfg.pad_id is not None and any(fills_left(part.first, cfg.pad_id) for part in splits)
        tokens = {"vocab_size": size, "pad_id": cfg.pad_id, "padded": cfg.pad_id is not None, "left": left}
    return Spec(cfg.kind, tuple(shape), classes, **tokens, task=cfg.task)
