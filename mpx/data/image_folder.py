"""Images in folders named after their class (ImageNet's layout). Worker processes decode them when they are
needed.

    <data.path>/train/<class>/*.jpg    <data.path>/val/<class>/*.jpg    [<data.path>/test/<class>/*.jpg]

Without test/, val/ is the test set and a share of train/ is held out for validation: the best epoch is never
chosen by the test set. torchvision's ImageFolder lists the files.
"""

import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.data.augment import normalise
from mpx.data.image_sets import per_channel
from mpx.data.order import generator, hold_out, seeded
from mpx.data.spec import Spec
from mpx.data.splits import Data
from mpx.errors import UserError, first_line

Part = tuple[tuple[str, ...], Tensor]  # paths, labels int64 [N]
SEEDS = 2**62  # number of seeds that a sample's augmentation is drawn from


@dataclass(frozen=True)
class Files:
    """Image files and their labels, with the methods of a split (splits.py)."""

    paths: tuple[str, ...]
    labels: Tensor  # int64 [N]
    mean: Tensor  # [3, 1, 1]
    std: Tensor
    size: int  # pixels of the square that a model sees
    resize: int  # pixels of the shorter side before the evaluation crop
    augment: bool = False

    nbytes = None  # the images stay on disk

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def checksum(self) -> int:
        """The checksum of the files' names and sizes. Reading a large set would take hours, and a copy has
        other times.
        """
        crc = zlib.crc32(self.labels.numpy().tobytes())
        for path in map(Path, self.paths):
            crc = zlib.crc32(f"{path.parent.name}/{path.name} {path.stat().st_size}".encode(), crc)
        return crc

    def plan(self, seed: int, epoch: int) -> Tensor | None:
        """A random seed for each sample, int64 [N, 1]."""
        if not self.augment:
            return None
        return torch.randint(0, SEEDS, (len(self), 1), generator=generator(seed, "augment", epoch))

    def raw(self, index: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, 3, size, size] and labels [B]. Raises a UserError that names the file that cannot
        be read.
        """
        seeds = [None] * len(index) if rows is None else rows.flatten().tolist()
        made = [self.one(self.paths[i], seed) for i, seed in zip(index.tolist(), seeds, strict=True)]
        return torch.stack(made), self.labels[index]

    def finish(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return normalise(x, 255, self.mean.to(x.device), self.std.to(x.device)), y

    def one(self, path: str, seed: int | None) -> Tensor:
        """Decode and crop one image: uint8 [3, size, size]."""
        image = decode(path)
        with nullcontext() if seed is None else seeded(seed):  # torchvision draws from the global generator
            return self.transform(image)

    @cached_property
    def transform(self):
        from torchvision.transforms import v2

        if self.augment:
            steps = [v2.RandomResizedCrop(self.size, antialias=True), v2.RandomHorizontalFlip()]
        else:
            steps = [v2.Resize(self.resize, antialias=True), v2.CenterCrop(self.size)]
        return v2.Compose([*steps, v2.PILToTensor()])


def load(cfg: SimpleNamespace) -> Data:
    """Read the folder's splits. Raises UserError for a missing or empty folder, and for classes that
    differ.
    """
    size, root = cfg.image_size, Path(str(cfg.path)).expanduser()
    classes, train = listed(root / "train", None)
    _, val = listed(root / "val", classes)
    if (root / "test").is_dir():
        _, test = listed(root / "test", classes)
    else:
        kept, held_out = hold_out(train[1], max(1, round(cfg.val_share * len(train[0]))))
        train, val, test = pick(train, kept), pick(train, held_out), val
    mean, std, random = per_channel(cfg.mean), per_channel(cfg.std), cfg.augment != "none"
    splits = [
        Files(paths, labels, mean, std, size, cfg.resize, augment)
        for (paths, labels), augment in ((train, random), (val, False), (test, False))
    ]
    return Data(Spec("image", (3, size, size), len(classes), names=classes), *splits)


def listed(where: Path, classes: tuple[str, ...] | None) -> tuple[tuple[str, ...], Part]:
    """(classes, (paths, labels int64 [N])) of one split, sorted.

    classes: of the train split. Raises UserError for an empty folder or other classes.
    """
    from torchvision.datasets import ImageFolder

    try:
        images = ImageFolder(str(where))
    except OSError as error:
        raise UserError(
            f"data.path: {where} has no images in {where}/<class>/ ({first_line(error)}): add some, or "
            "remove the class"
        ) from error
    names = tuple(images.classes)
    if len(names) < 2:
        raise UserError(
            f"data.path: {where} has one class only ({names[0]}): give each class its folder, at least 2"
        )
    if classes is not None and (other := sorted(set(names) ^ set(classes))):
        raise UserError(
            f"data.path: the class {other[0]} is in only one of {where} and train/: add it, or "
            "remove it there"
        )
    return names, (tuple(path for path, _ in images.samples), torch.tensor(images.targets))


def pick(part: Part, index: Tensor) -> Part:
    return tuple(part[0][i] for i in index.tolist()), part[1][index]


def decode(path: str):
    """The image as RGB. Raises a UserError that names the file if it is damaged, no image, or has other than
    8 bits.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode.startswith(("I", "F")):  # its conversion to RGB would cut the values off at 255
                raise ValueError("its pixels have 16 or 32 bits, where 8 are needed")
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # of Pillow, for damaged files
        raise UserError(
            f"data.path: {path} cannot be read as an image ({first_line(error)}): replace or remove the file"
        ) from error
