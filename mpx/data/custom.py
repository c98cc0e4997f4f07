"""The user's own data: `data=custom data._target_=my_data.make_data`, which returns the train, validation and
test data.

Each is a map-style Dataset, which makes its samples one by one in worker processes, or a pair of tensors (x,
y), which stay in memory.
"""

import zlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpx.data.encode import fills_left
from mpx.data.order import generator, seeded
from mpx.data.spec import NO_LABEL, Spec
from mpx.data.splits import Data, InMemory
from mpx.errors import UserError, first_line
from mpx.settings import target

SPLITS = ("train", "validation", "test")
FIRST = 100  # samples of a Dataset that tell on which side texts are filled up
HASHED = 1000  # samples of a Dataset that its hash is of; making all of a large one takes hours
DIMENSIONS = {"image": (3, "floats or uint8 [C, H, W]"), "text": (1, "whole numbers [T]")}  # of one x
Y = {"classification": "a whole number", "tokens": "[T] whole numbers"}  # of one y; other tasks: [K] numbers


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

    dataset: Sequence
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
        """The checksum of at most HASHED samples, spread evenly. Every draw is seeded."""
        crc = zlib.crc32(str(len(self)).encode())
        for place in range(0, len(self), -(-len(self) // HASHED)):
            for part in self.one(place, place):
                crc = zlib.crc32(part.contiguous().numpy().tobytes(), crc)
        return crc

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
        y = with_type(y[None], self.task, where)[0]
        if (list(x.shape), list(y.shape)) != self.shapes:
            raise UserError(
                f"data._target_: {where} has x of shape {list(x.shape)} and y of {list(y.shape)}, the "
                "first sample "
                f"{self.shapes[0]} and {self.shapes[1]}: make all samples alike"
            )
        check_values(x, y, self.task, self.classes, self.vocab_size, where)
        return x, y


def finished(x: Tensor, kind: str) -> Tensor:
    """As models take it: pixels of 8 bits as numbers from 0 to 1, other pixels in FP32, token ids in 64
    bits.
    """
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
            f"data._target_={path} returned a {type(made).__name__}{size}; it must return three: the "
            "train, validation "
            "and test data."
        )
    splits = [split(part, name, cfg) for part, name in zip(made, SPLITS, strict=True)]
    return Data(spec_of(cfg, splits), *splits)


def split(part: Any, name: str, cfg: SimpleNamespace) -> Tensors | Samples:
    """One split as mpx reads it. Raises UserError."""
    if isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], (Tensor, np.ndarray)):
        where = f"the {name} data"
        x, y = pair(part, where)
        if len(x) == 0 or len(x) != len(y):
            raise UserError(
                f"data._target_: {where} have {len(x)} x and {len(y)} y: give one y for each "
                "x, and at least one"
            )
        check_x(x[0], where, cfg.kind)
        return Tensors(x.float() if x.is_floating_point() else x, with_type(y, cfg.task, where), cfg.kind)
    if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")) or len(part) == 0:
        raise UserError(
            f"data._target_: the {name} data are a {type(part).__name__}; a Dataset with __len__ and "
            "__getitem__ that is "
            "not empty, or a pair of tensors (x, y), is needed"
        )
    classes = _needed(cfg, "classes") if cfg.task in Y else None
    vocab_size = _needed(cfg, "vocab_size") if cfg.kind == "text" else None
    where = f"{name}[0]"
    x, y = pair(part[0], where)
    check_x(x, where, cfg.kind)
    shapes = list(x.shape), list(with_type(y[None], cfg.task, where).shape[1:])
    return Samples(part, shapes, cfg.kind, name, cfg.task, classes, vocab_size)


def _needed(cfg: SimpleNamespace, key: str) -> int:
    if getattr(cfg, key) is None:
        raise UserError(
            f"data.{key} is not set, and a Dataset does not tell it. Give it, for example data.{key}=10."
        )
    return getattr(cfg, key)


def spec_of(cfg: SimpleNamespace, splits: list[Tensors | Samples]) -> Spec:
    """What models see. Raises UserError for splits that differ, and for values outside of their range."""
    shape, width = splits[0].shapes
    for part, name in zip(splits, SPLITS, strict=True):
        if part.shapes != (shape, width):
            raise UserError(
                f"data._target_: the {name} data have x of shape {part.shapes[0]} and y of "
                f"{part.shapes[1]}, the train data "
                f"{shape} and {width}: make them alike"
            )
    tensors = {
        f"the {name} data": part
        for part, name in zip(splits, SPLITS, strict=True)
        if isinstance(part, Tensors)
    }
    classes = (
        width[0] if cfg.task not in Y else cfg.classes or max(2, 1 + int(tensors["the train data"].y.max()))
    )
    vocab_size = None
    if cfg.kind == "text":
        vocab_size = cfg.vocab_size or 1 + max(
            cfg.pad_id or 0, *(int(part.x.max()) for part in tensors.values())
        )
    for where, part in tensors.items():
        check_values(part.x, part.y, cfg.task, classes if cfg.task in Y else None, vocab_size, where)
        if cfg.task == "tokens" and not (part.y != NO_LABEL).any():
            raise UserError(
                f"data._target_: no token of {where} has a label: every y is {NO_LABEL}. Label some."
            )
    if vocab_size is None:
        return Spec(cfg.kind, tuple(shape), classes, task=cfg.task)
    pads = cfg.pad_id is not None
    left = pads and any(fills_left(part.first, cfg.pad_id) for part in splits)
    tokens = {"vocab_size": vocab_size, "pad_id": cfg.pad_id, "padded": pads, "left": left}
    return Spec(cfg.kind, tuple(shape), classes, **tokens, task=cfg.task)


def pair(sample: Any, where: str) -> tuple[Tensor, Tensor]:
    """(x, y) of one sample as tensors. Raises UserError."""
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise UserError(f"data._target_: {where} is a {type(sample).__name__}, where a pair (x, y) is needed")
    try:
        return torch.as_tensor(sample[0]), torch.as_tensor(sample[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"data._target_: {where} holds a value that is neither a tensor nor a number "
            f"({first_line(error)}): convert it "
            "to numbers"
        ) from error


def with_type(y: Tensor, task: str, where: str) -> Tensor:
    """y of the type and dimensions that the task has. y: [N, …]. Raises UserError."""
    if task == "regression" and y.dim() == 1:
        y = y[:, None]
    if y.dim() != (1 if task == "classification" else 2) or (task in Y and y.is_floating_point()):
        raise UserError(
            f"data._target_: a y of {where} is {y.dtype} of shape {list(y.shape[1:])}; data.task={task} "
            "needs "
            f"{Y.get(task, '[K] numbers')}. Change it, or data.task."
        )
    return y.long() if task in Y else y.float()


def check_x(x: Tensor, where: str, kind: str) -> None:
    """Raise UserError for an x that is not of data.kind."""
    dimensions, what = DIMENSIONS[kind]
    fits = x.is_floating_point() or x.dtype == torch.uint8 if kind == "image" else not x.is_floating_point()
    if x.dim() != dimensions or not fits:
        raise UserError(
            f"data._target_: an x of {where} is {x.dtype} of shape {list(x.shape)}; data.kind={kind} needs "
            f"{what}. "
            "Change it, or data.kind."
        )


def check_values(
    x: Tensor, y: Tensor, task: str, classes: int | None, vocab_size: int | None, where: str
) -> None:
    """Raise UserError for a label that is no class, a target without meaning for the task's loss, or a wrong
    token id.
    """
    if classes is None:
        fits = (y == 0) | (y == 1) if task == "multilabel" else y.isfinite()
        if not fits.all():
            needed = "zeros and ones" if task == "multilabel" else "finite numbers"
            raise UserError(
                f"data._target_: {where} has {y[~fits][0]:g} in y; data.task={task} needs {needed}. "
                "Correct it, or data.task."
            )
    else:
        _check_below(y[y != NO_LABEL] if task == "tokens" else y, classes, f"{where} has labels", "classes")
    if vocab_size is not None:
        _check_below(x, vocab_size, f"x of {where} has token ids", "vocab_size")


def _check_below(values: Tensor, count: int, what: str, key: str) -> None:
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < count:
        raise UserError(
            f"data._target_: {what} from {int(values.min())} to {int(values.max())}, where they are "
            "numbered from 0 to "
            f"{count - 1}. Renumber them, or give data.{key}."
        )
