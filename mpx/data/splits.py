"""The splits of a data set, and how a batch is taken from them.

All splits have the same methods, so that loaders need not know what they load:

    len(split)                        number of samples
    split.nbytes                      bytes of its tensors; None if no device can hold it
    split.on_disk                     whether the samples are images that stay in files (readers.py decodes
                                      them on a device)
    split.checksum                    changes with the samples, their labels and their order
    split.to(device)                  the same split with its tensors on `device`; only for splits in memory
    split.plan(seed, epoch)           the epoch's random choices, one row per sample, on the CPU; None if
                                      there are none
    split.raw(index, rows)            x, y of the samples `index` [B] as they are stored; rows = plan[index]
                                      or None
    split.finish(x, y, rows)          the batch as Spec describes it, computed on the device of x
"""

import zlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from mpx.data import augment
from mpx.data.order import generator
from mpx.data.spec import Spec


@dataclass(frozen=True)
class InMemory:
    """A split whose dataclass fields are tensors and settings."""

    on_disk = False

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    @property
    def checksum(self) -> int:
        found = 0
        for name, tensor in self._tensors().items():
            found = zlib.crc32(
                tensor.contiguous().numpy().tobytes(),
                zlib.crc32(f"{name} {tuple(tensor.shape)}".encode(), found),
            )
        return found

    def plan(self, seed: int, epoch: int) -> Tensor | None:
        return None

    def to(self, device: torch.device) -> Self:
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Images(InMemory):
    """Images in memory. They are normalised and augmented when a batch is taken."""

    images: Tensor  # uint8 [N, C, H, W], 0..top
    labels: Tensor  # int64 [N]
    mean: Tensor  # float32 [C, 1, 1], of pixels scaled to 0..1
    std: Tensor
    top: int = 255  # value of the brightest pixel
    augment: str = "none"
    pad: int = 0  # black pixels added on each side before the random crop
    crop: int | None = None  # side of the random crop in pixels; None: the image's side
    cutout: int = 0  # side in pixels of the square that is set to zero; 0: none

    def __len__(self) -> int:
        return len(self.labels)

    def plan(self, seed: int, epoch: int) -> Tensor | None:
        """Three columns for the crop, if any, then two for the cut-out square, if any; int16 [N, 3], [N, 2]
        or [N, 5].
        """
        height, width = self.images.shape[2:] if self.crop is None else (self.crop, self.crop)
        # positions of the crop's corner, the same number across and down
        places = self.images.shape[3] + 2 * self.pad - width + 1
        shifts = augment.draw(len(self), self.augment, places, seed, epoch)
        if not self.cutout:
            return shifts
        centres = augment.draw_centres(len(self), height, width, seed, epoch)
        return centres if shifts is None else torch.cat([shifts, centres], dim=1)

    def raw(self, index: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def finish(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        if rows is not None and self.augment != "none":
            x = augment.crop_flip(x, rows[:, :3], self.pad, self.crop)
        x = augment.normalise(x, self.top, self.mean, self.std)
        return (
            (x, y) if rows is None or not self.cutout else (augment.cut_out(x, rows[:, -2:], self.cutout), y)
        )


@dataclass(frozen=True)
class Texts(InMemory):
    """Texts as rows of token ids, all of one length."""

    ids: Tensor  # int32 [N, T], padded
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self, index: Tensor, rows: None) -> tuple[Tensor, Tensor]:
        return self.ids[index], self.labels[index]

    def finish(self, x: Tensor, y: Tensor, rows: None) -> tuple[Tensor, Tensor]:
        return x.long(), y


@dataclass(frozen=True)
class Windows(InMemory):
    """One stream of tokens, cut into windows that do not overlap. The target is the window one token later.

    With `shift` the first window starts at a random token in [0, length) in each epoch, so that the context
    of a word varies. Tokens that do not fill the last window are dropped.
    """

    stream: Tensor  # int32 [L]
    length: int  # T, tokens per window
    shift: bool = False

    def __len__(self) -> int:
        spare = self.length - 1 if self.shift else 0  # every start leaves the same number of windows
        return max(0, (len(self.stream) - 1 - spare) // self.length)

    def plan(self, seed: int, epoch: int) -> Tensor:
        """The first token of each window, int64 [N]."""
        first = 0
        if self.shift:
            first = int(torch.randint(0, self.length, (), generator=generator(seed, "shift", epoch)))
        return first + self.length * torch.arange(len(self))

    def raw(self, index: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        at = rows[:, None] + torch.arange(self.length + 1, device=rows.device)  # [B, T + 1]
        tokens = self.stream[at]
        return tokens[:, :-1], tokens[:, 1:]

    def finish(self, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return x.long(), y.long()


@dataclass(frozen=True)
class Data:
    """A data set, read and checked, on the CPU."""

    spec: Spec
    train: Any  # Images, Texts, Windows, or a split of image_folder.py or custom.py
    val: Any
    test: Any
    # what the files decide where the settings leave it open, for the record
    settings: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def splits(self) -> dict[str, Any]:
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def sizes(self) -> dict[str, int]:
        """Samples in each split (lm: windows)."""
        return {name: len(split) for name, split in self.splits.items()}

    @property
    def checksums(self) -> list[int]:
        """The checksum of each split. A checkpoint keeps them, so that a run does not continue with other
        data unnoticed.
        """
        return [split.checksum for split in self.splits.values()]


def samples_line(data: Data, batch_size: int, batches: int) -> str:
    """What an epoch trains on. batch_size: of all devices together."""
    shape = " × ".join(map(str, data.spec.shape[-2:]))
    what = {"image": f"images of {shape} pixels", "text": f"texts of up to {shape} tokens"}
    sample = what.get(data.spec.kind, f"windows of {shape} tokens")
    many = "batch" if batches == 1 else "batches"
    line = f"{len(data.train):,} training {sample}, {batches:,} {many} of {batch_size} an epoch"
    unused = len(data.train) - batches * batch_size
    return f"{line}, which leaves out {unused:,}, others each time" if unused > 0 else line
