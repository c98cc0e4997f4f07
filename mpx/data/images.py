"""Turn arrays of pixels into a `Data` of three splits."""

from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.data.splits import Data, Images
from mpx.spec import Spec

Part = tuple[Tensor, Tensor]  # uint8 images [N, C, H, W], int64 labels [N]


def image_data(cfg: SimpleNamespace, train: Part, val: Part, test: Part, classes: int, top: int = 255) -> Data:
    """The splits of an image set in memory, by the settings image_size, mean, std, augment, pad, crop and cutout.

    top: the value of the brightest pixel.
    """
    parts = [train, val, test]
    if cfg.image_size is not None:
        parts = [(resize(images, cfg.image_size, top), labels) for images, labels in parts]
        top = 255
    mean, std = per_channel(cfg.mean), per_channel(cfg.std)
    random = {"augment": cfg.augment, "pad": cfg.pad, "crop": cfg.crop, "cutout": cfg.cutout}
    splits = [Images(x, y, mean, std, top, **(random if i == 0 else {})) for i, (x, y) in enumerate(parts)]
    spec = Spec(kind="image", shape=tuple(splits[0].images.shape[1:]), classes=classes)
    return Data(spec, *splits)


def per_channel(values: list[float]) -> Tensor:
    """One number per channel as float32 [C, 1, 1]."""
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def resize(images: Tensor, size: int, top: int) -> Tensor:
    """Resize to squares of `size` pixels, 0..255, in pieces that bound the memory. images: uint8 [N, C, H, W] in 0..top."""
    from torchvision.transforms.v2 import functional as v2

    def piece(x: Tensor) -> Tensor:
        bright = x.to(torch.float32) * (255 / top)
        return v2.resize(bright, [size, size], antialias=True).round().clamp(0, 255).to(torch.uint8)

    return torch.cat([piece(x) for x in images.split(1024)])
