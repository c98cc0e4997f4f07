"""The user's own data: `data=custom data._target_=my_data.make_data`, which returns the train, validation and
test data.

Each is a map-style Dataset, which makes its samples one by one in worker processes, or a pair of tensors (x,
y), which stay in memory.
"""

import zlib
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpx.data.order import generator, seeded
from mpx.data.spec import NO_LABEL, Spec
from mpx.data.splits import Data, InMemory
from mpx.errors import UserError, first_line
from mpx.settings import target

SPLITS = ("train", "validation", "test")
HASHED = 1000  # samples of a Dataset that its hash is of; making all of a large one takes hours
DIMENSIONS = {"image": (3, "floats or uint8 [C, H, W]"), "text": (1, "whole numbers [T]")}  # of one x
Y = {"classification": "a whole number", "tokens": "[T] whole numbers"}  # of one y; other tasks: [K] numbers


@dataclass(frozen=True)
class Form:
    """What samples must look like."""

    kind: str  # image or text
    task: str
    classes: int | None  # labels are below it; None: not known, or labels are not classes
    vocab_size: int | None  # token ids are below it; None: not known, or an image

    def typed(self, x: Tensor, y: Tensor, where: str) -> tuple[Tensor, Tensor]:
        """x and y, each [N, …], in the types that models take. Raises UserError for other shapes and types
        than data.kind and data.task have.
        """
        if self.task == "regression" and y.dim() == 1:
            y = y[:, None]
        dimensions, wanted = DIMENSIONS[self.kind]
        pixels = x.is_floating_point() or x.dtype == torch.uint8
        if x.dim() != dimensions + 1 or not (pixels if self.kind == "image" else not x.is_floating_point()):
            raise UserError(
                f"data._target_: an x of {where} is {x.dtype} of shape {list(x.shape[1:])}; "
                f"data.kind={self.kind} needs {wanted}. Change it, or data.kind."
            )
        dimensions = 1 if self.task == "classification" else 2
        if y.dim() != dimensions or (self.task in Y and y.is_floating_point()):
            raise UserError(
                f"data._target_: a y of {where} is {y.dtype} of shape {list(y.shape[1:])}; "
                f"data.task={self.task} needs {Y.get(self.task, '[K] numbers')}. Change it, or data.task."
            )
        return x, y.long() if self.task in Y else y.float()

    def check_values(self, x: Tensor, y: Tensor, where: str) -> None:
        """Raise UserError for a label that is no class, a target without meaning for the task's loss, or a
        wrong token id.
        """
        if self.task not in Y:
            fits = (y == 0) | (y == 1) if self.task == "multilabel" else y.isfinite()
            if not fits.all():
                needed = "zeros and ones" if self.task == "multilabel" else "finite numbers"
                raise UserError(
                    f"data._target_: {where} has {y[~fits][0]:g} in y; data.task={self.task} needs {needed}. "
                    "Correct it, or data.task."
                )
        labels = y[y != NO_LABEL] if self.task == "tokens" else y
        for values, count, key, what in (
            (labels, self.classes, "classes", f"{where} has labels"),
            (x, self.vocab_size, "vocab_size", f"x of {where} has token ids"),
        ):
            if count is None or not values.numel():
                continue
            if not 0 <= (low := int(values.min())) <= (high := int(values.max())) < count:
                raise UserError(
                    f"data._target_: {what} from {low} to {high}, where they are numbered from 0 to "
                    f"{count - 1}. Renumber them, or give data.{key}."
                )


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
    name: str  # for errors
    form: Form
    shapes: tuple[list[int], list[int]] | None = None  # of one x and one y; None: not known yet

    nbytes = None  # the samples are made when they are needed

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
        return finished(x, self.form.kind), y

    def one(self, place: int, seed: int) -> tuple[Tensor, Tensor]:
        where = f"{self.name}[{place}]"
        with seeded(seed):
            x, y = pair(self.dataset[place], where)
        x, y = self.form.typed(x[None], y[None], where)
        self.form.check_values(x, y, where)
        shapes = list(x.shape[1:]), list(y.shape[1:])
        if self.shapes not in (None, shapes):
            raise UserError(
                f"data._target_: {where} has x and y of shapes {shapes}, the first sample of train "
                f"{self.shapes}: make all samples alike"
            )
        return x[0], y[0]


def finished(x: Tensor, kind: str) -> Tensor:
    """As models take it: pixels of 8 bits as numbers from 0 to 1, other pixels in FP32, token ids in 64
    bits.
    """
    if kind == "text":
        return x.long()
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def pair(sample: Any, where: str) -> tuple[Tensor, Tensor]:
    """(x, y) as tensors. Raises UserError."""
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise UserError(f"data._target_: {where} is a {type(sample).__name__}, where a pair (x, y) is needed")
    try:
        return torch.as_tensor(sample[0]), torch.as_tensor(sample[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"data._target_: {where} holds a value that is neither a tensor nor a number "
            f"({first_line(error)}): convert it to numbers"
        ) from error


def load(cfg: SimpleNamespace) -> Data:
    """Call the user's function. Raises UserError for what it returns if that cannot be used."""
    path, kwargs = vars(cfg)["_target_"], cfg.kwargs or {}
    with seeded(0):  # the same data for every seed of a study
        made = target.build("data._target_", {**kwargs, "_target_": path}, "data.kwargs")
    if not isinstance(made, (tuple, list)) or len(made) != len(SPLITS):
        size = f" of {len(made)}" if isinstance(made, Sized) else ""
        raise UserError(
            f"data._target_={path} returned a {type(made).__name__}{size}; it must return three: the "
            "train, validation and test data."
        )
    form = Form(
        cfg.kind,
        cfg.task,
        cfg.classes if cfg.task in Y else None,
        cfg.vocab_size if cfg.kind == "text" else None,
    )
    splits = {name: split(part, name, form) for name, part in zip(SPLITS, made, strict=True)}
    shapes = splits["train"].shapes
    for name, part in splits.items():
        if part.shapes != shapes:
            raise UserError(
                f"data._target_: the {name} data have x and y of shapes {part.shapes}, the train data "
                f"{shapes}: make them alike"
            )
    return Data(spec_of(cfg, form, splits), *splits.values())


def split(part: Any, name: str, form: Form) -> Tensors | Samples:
    """One split as mpx reads it. Raises UserError."""
    if isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], (Tensor, np.ndarray)):
        x, y = pair(part, f"the {name} data")
        if len(x) == 0 or len(x) != len(y):
            raise UserError(
                f"data._target_: the {name} data have {len(x)} x and {len(y)} y: give one y for each x, and "
                "at least one"
            )
        x, y = form.typed(x, y, f"the {name} data")
        return Tensors(x.float() if x.is_floating_point() else x, y, form.kind)
    if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")) or len(part) == 0:
        raise UserError(
            f"data._target_: the {name} data are a {type(part).__name__}; a Dataset with __len__ and "
            "__getitem__ that is not empty, or a pair of tensors (x, y), is needed"
        )
    for key, needed in (("classes", form.task in Y), ("vocab_size", form.kind == "text")):
        if needed and getattr(form, key) is None:
            raise UserError(
                f"data.{key} is not set, and a Dataset does not contain it. Give it, as data.{key}=10."
            )
    samples = Samples(part, name, form)
    x, y = samples.one(0, 0)
    return replace(samples, shapes=(list(x.shape), list(y.shape)))


def spec_of(cfg: SimpleNamespace, form: Form, splits: Mapping[str, Any]) -> Spec:
    """What models see: what the settings leave open is taken from the tensors. Raises UserError for values
    outside of their range.
    """
    tensors = {name: part for name, part in splits.items() if isinstance(part, Tensors)}
    shape, width = splits["train"].shapes
    if cfg.task in Y and form.classes is None:
        form = replace(form, classes=max(2, 1 + int(tensors["train"].y.max())))
    if cfg.kind == "text" and form.vocab_size is None:
        largest = max(cfg.pad_id or 0, *(int(part.x.max()) for part in tensors.values()))
        form = replace(form, vocab_size=1 + largest)
    for name, part in tensors.items():
        form.check_values(part.x, part.y, f"the {name} data")
    classes = form.classes or width[0]
    if cfg.kind == "image":
        return Spec("image", tuple(shape), classes, task=cfg.task)
    tokens = {"vocab_size": form.vocab_size, "pad_id": cfg.pad_id, "padded": cfg.pad_id is not None}
    return Spec("text", tuple(shape), classes, **tokens, task=cfg.task)
