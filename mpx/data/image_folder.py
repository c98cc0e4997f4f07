"""Images in folders named after their class (ImageNet's layout). Worker processes decode them when they are
needed, or the device does.

    <data.path>/<class>/*.jpg    of which a fixed tenth each is held out for validation and test
    <data.path>/train/<class>/*.jpg, and val/<class>/*.jpg or test/<class>/*.jpg or both

With only one of val/ and test/, it is the test set and a share of train/ is held out for validation: the best
epoch is never chosen by the test set. torchvision's ImageFolder lists the files.
"""

import zlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from math import prod
from multiprocessing.pool import ThreadPool
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import torch
from PIL.Image import Image
from torch import Tensor
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms.v2.functional import get_size, pil_to_tensor

from mpx.data.augment import normalise
from mpx.data.decoding import Box, check_image, crop, cut, decode, random_box, whole_box
from mpx.data.image_sets import per_channel
from mpx.data.order import SPLIT_SEED, generator, hold_out, stratified_order
from mpx.data.spec import Spec
from mpx.data.splits import Data
from mpx.errors import UserError, first_line
from mpx.system.machine import usable_cores

Part = tuple[tuple[str, ...], Tensor]  # paths, labels int64 [N]
SEEDS = 2**62  # number of seeds that a sample's augmentation is drawn from
USUAL = 224  # pixels a side, if the images are not smaller
LARGER = 256 / 224  # shorter side before the evaluation crop, relative to the crop's
CHECKED = 20_000  # images that are read before training; 2,000 photographs take 2 s on two cores


@dataclass(frozen=True)
class Files:
    """Image files and their labels, with the methods of a split (splits.py)."""

    paths: tuple[str, ...]
    labels: Tensor  # int64 [N]
    mean: Tensor  # [3, 1, 1]
    std: Tensor
    size: int  # pixels of the square that a model sees
    resize: int  # pixels of the shorter side before the evaluation crop
    pixels: float  # of an image, on average
    augment: str = "none"  # as data.augment

    on_disk = True

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def nbytes(self) -> int:
        """Of all images, decoded."""
        return round(3 * self.pixels * len(self))

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
        if self.augment == "none":
            return None
        return torch.randint(0, SEEDS, (len(self), 1), generator=generator(seed, "augment", epoch))

    def raw(self, index: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images uint8 [B, 3, size, size] and labels [B]. Raises a UserError that names the file that cannot
        be read.
        """
        made = [
            self.one(self.paths[i], seed) for i, seed in zip(index.tolist(), seeds(index, rows), strict=True)
        ]
        return torch.stack(made), self.labels[index]

    def crop(self, images: Sequence[Tensor], rows: Tensor | None) -> Tensor:
        """x as of `raw`, on the device of the decoded images, uint8 [3, H, W] each."""
        drawn = zip(images, seeds(images, rows), strict=True)
        return crop(images, [self.box(image, seed) for image, seed in drawn], self.size)

    def finish(self, x: Tensor, y: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return normalise(x, 255, self.mean, self.std), y

    def one(self, path: str, seed: int | None) -> Tensor:
        """Decode and crop one image: uint8 [3, size, size]."""
        image = decode(path)
        return pil_to_tensor(cut(image, self.box(image, seed), self.size))

    def box(self, image: Image | Tensor, seed: int | None) -> Box:
        height, width = get_size(image)
        if seed is None:
            return whole_box(height, width, self.resize)
        return random_box(height, width, self.size, seed, mirror=self.augment == "crop_flip")


def seeds(samples: Sized, rows: Tensor | None) -> list[int] | list[None]:
    """The seed of each sample. rows: of the plan; None: nothing is random."""
    return [None] * len(samples) if rows is None else rows.flatten().tolist()


def load(cfg: SimpleNamespace) -> Data:
    """Read the folder's splits. Raises UserError for a missing or empty folder, for classes that differ, and
    for an image that cannot be read.
    """
    classes, parts = splits_of(Path(str(cfg.path)).expanduser(), cfg.val_share)
    sizes = check_images([path for paths, _ in parts for path in paths])
    sides = {side for size in sizes for side in size}
    size = cfg.image_size or min(max(sides), USUAL)
    resize = cfg.resize or (size if sides == {size} else round(size * LARGER))
    mean, std = per_channel(cfg.mean), per_channel(cfg.std)
    splits = [
        Files(paths, labels, mean, std, size, resize, fmean(map(prod, sizes)), augment)
        for (paths, labels), augment in zip(parts, (cfg.augment, "none", "none"), strict=True)
    ]
    spec = Spec("image", (3, size, size), len(classes), names=classes)
    return Data(spec, *splits, settings={"image_size": size, "resize": resize})


def splits_of(root: Path, val_share: float) -> tuple[tuple[str, ...], list[Part]]:
    """(classes, [train, validation, test]). Raises UserError for a folder without images."""
    if not (root / "train").is_dir():
        if not any(file.suffix.lower() in IMG_EXTENSIONS for file in root.glob("*/*")):
            raise UserError(
                f"data.path: {root} holds neither train/<class>/ nor <class>/ with images. Give the folder "
                "that does."
            )
        classes, whole = listed(root, None)
        order, tenth = stratified_order(whole[1], SPLIT_SEED), max(1, len(whole[0]) // 10)
        parts = order[2 * tenth :], order[:tenth], order[tenth : 2 * tenth]
        return classes, [pick(whole, part) for part in parts]
    classes, train = listed(root / "train", None)
    names = [name for name in ("val", "test") if (root / name).is_dir()] or ["val"]
    others = [listed(root / name, classes)[1] for name in names]
    if len(others) == 2:
        return classes, [train, *others]
    kept, held_out = hold_out(train[1], max(1, round(val_share * len(train[0]))))
    return classes, [pick(train, kept), pick(train, held_out), *others]


def listed(where: Path, classes: tuple[str, ...] | None) -> tuple[tuple[str, ...], Part]:
    """(classes, (paths, labels int64 [N])) of one split, sorted.

    classes: of the train split. Raises UserError for an empty folder or other classes.
    """
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


def check_images(paths: list[str]) -> list[tuple[int, int]]:
    """The sizes of the images, of at most CHECKED ones that are spread evenly. Raises UserError for one that
    cannot be read, to which training would come hours later.
    """
    some = paths[:: -(-len(paths) // CHECKED)]
    with ThreadPool(usable_cores()) as pool:  # Pillow decodes without Python's lock
        return list(pool.imap_unordered(check_image, some, chunksize=16))


def unlabelled(cfg: SimpleNamespace, data: Data, folder: Path) -> tuple[list[str], Files]:
    """The image files below a folder, sorted, as a split whose labels mean nothing. Raises UserError if there
    is none, or one cannot be read.
    """
    paths = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS)
    if not paths:
        raise UserError(f"predict={folder} is no folder with images (.jpg, .png and others). Give one.")
    check_images(paths)
    return paths, replace(data.test, paths=tuple(paths), labels=torch.zeros(len(paths), dtype=torch.int64))
