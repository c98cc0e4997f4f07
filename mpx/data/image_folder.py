"""Images in folders named after their class (ImageNet's layout). Worker processes decode them when they are needed.

    <data.path>/train/<class>/*.jpg    <data.path>/val/<class>/*.jpg    [<data.path>/test/<class>/*.jpg]

Without test/, val/ is the test set and a share of train/ is held out for validation: the best epoch is never chosen by the test set.
"""

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from mpx.data.augment import normalise
from mpx.data.images import per_channel
from mpx.data.order import generator, hold_out, seeded
from mpx.data.splits import Data
from mpx.errors import UserError, first_line
from mpx.machine import usable_cores
from mpx.spec import Spec

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff"}
CHECKED = 5000  # images that are decoded before training, which takes seconds
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
        """The checksum of the files' names and sizes. Reading a large set would take hours, and a copy has other times."""
        found = zlib.crc32(self.labels.numpy())
        for path in map(Path, self.paths):
            found = zlib.crc32(f"{path.parent.name}/{path.name} {path.stat().st_size}".encode(), found)
        return found

    def plan(self, seed: int, epoch: int) -> Tensor | None:
        """A random seed for each sample, int64 [N, 1]."""
        if not self.augment:
            return None
        return torch.randint(0, SEEDS, (len(self), 1), generator=generator(seed, "augment", epoch))

    def raw(self, index: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, 3, size, size] and labels [B]. Raises a UserError that names the file that cannot be read."""
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
    """Read the folder's splits. Raises UserError for a missing or empty folder and for classes that differ between the splits."""
    size, root = cfg.image_size, Path(str(cfg.path)).expanduser()
    classes = class_folders(root / "train")
    train = listed(root / "train", classes)
    val, test = listed(root / "val", classes), listed(root / "test", classes) if (root / "test").is_dir() else None
    if test is None:
        kept, held_out = hold_out(train[1], max(1, round(cfg.val_share * len(train[0]))))
        train, val, test = pick(train, kept), pick(train, held_out), val
    shared = {"mean": per_channel(cfg.mean), "std": per_channel(cfg.std), "size": size, "resize": cfg.resize}
    check_images([*train[0], *val[0], *test[0]])
    splits = [Files(*part, **shared, augment=i == 0 and cfg.augment != "none") for i, part in enumerate((train, val, test))]
    return Data(Spec("image", (3, size, size), len(classes), names=classes), *splits)


def class_folders(where: Path) -> tuple[str, ...]:
    """The names of the folders in `where`, sorted; a class's number is its index."""
    if not where.is_dir():
        raise UserError(f"data.path: the folder {where} is missing: data=image_folder expects {where}/<class>/*.jpg")
    names = tuple(sorted(p.name for p in where.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if len(names) < 2:
        raise UserError(f"data.path: {where} has {len(names)} class folders: put the images of each class in {where}/<class>/, at least 2")
    return names


def listed(where: Path, classes: tuple[str, ...]) -> tuple[tuple[str, ...], Tensor]:
    """Paths and labels int64 [N] of one split, sorted. Raises UserError for an empty, missing or surplus class folder."""
    if surplus := sorted(set(class_folders(where)) - set(classes)):
        raise UserError(f"data.path: {where / surplus[0]} is a class that train/ does not have: remove it or add it to train/")
    paths, labels = [], []
    for number, name in enumerate(classes):
        folder = where / name
        found = sorted(images_in(folder)) if folder.is_dir() else []
        if not found:
            raise UserError(f"data.path: {folder} has no images ({', '.join(sorted(ENDINGS))}): add some or remove the class everywhere")
        paths += found
        labels += [number] * len(found)
    return tuple(paths), torch.tensor(labels)


def images_in(folder: Path) -> Iterator[str]:
    """Raises UserError for a pipe, a device or a broken link with the name of an image, from which reading could wait for ever."""
    for path in folder.rglob("*"):
        if path.suffix.lower() in ENDINGS and not path.is_dir():
            if not path.is_file():
                raise UserError(f"data.path: {path} is not an ordinary file: remove it")
            yield str(path)


def check_images(paths: Sequence[str]) -> None:
    """Decode every image once, so that a damaged one ends the run before training. A large set would take too long: a run that comes to its
    damaged image names it, too."""
    if len(paths) <= CHECKED:
        with ThreadPoolExecutor(usable_cores()) as pool:  # Pillow decodes without holding Python's lock
            for _ in pool.map(partial(decode, side=1), paths):
                pass


def pick(part: tuple[tuple[str, ...], Tensor], index: Tensor) -> tuple[tuple[str, ...], Tensor]:
    return tuple(part[0][i] for i in index.tolist()), part[1][index]


def decode(path: str, side: int | None = None):
    """The image as RGB; of a JPEG only the coarsest picture that is at least `side` pixels wide, which is faster.

    Raises a UserError that names the file if it is damaged, no image, or has pixels of 32 bits, whose range is not known.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if side is not None:
                image.draft("RGB", (side, side))
            if image.mode in ("I", "F"):
                raise ValueError("its pixels have 32 bits, where 8 or 16 are needed")
            if image.mode.startswith("I;16"):  # convert would cut its values off at 255
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # what Pillow raises for damaged files
        raise UserError(f"data.path: {path} cannot be read as an image ({first_line(error)}): replace or remove the file") from error
