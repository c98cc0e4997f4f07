"""From arrays of pixels to a `Data`: checks, resizing, the three splits."""

import torch
from torch import Tensor

from mpx.data.augment import CHOICES
from mpx.data.config import one_of, whole
from mpx.data.splits import Data, Images
from mpx.errors import UserError
from mpx.spec import Spec

Part = tuple[Tensor, Tensor]  # uint8 images [N, C, H, W], int64 labels [N]


def image_data(cfg, train: Part, val: Part, test: Part, class_names: tuple[str, ...], top: int = 255) -> Data:
    """The splits of an image set in memory, as the fields image_size, mean, std, augment, pad, crop and cutout say.

    top: the brightest pixel value. Raises UserError for a field out of range.
    """
    channels = train[0].shape[1]
    one_of("data.augment", cfg.augment, CHOICES)
    whole("data.pad", cfg.pad, low=0, high=64)
    whole("data.cutout", cfg.cutout, low=0, high=1024)
    mean, std = per_channel("data.mean", cfg.mean, channels), per_channel("data.std", cfg.std, channels)
    if bool((std <= 0).any()):
        raise UserError(f"data.std={cfg.std} is not allowed: every channel's standard deviation must be above 0")
    parts = [train, val, test]
    if cfg.image_size is not None:
        whole("data.image_size", cfg.image_size, low=1, high=1024, otherwise="null or ")
        parts = [(resize(images, cfg.image_size, top), labels) for images, labels in parts]
        top = 255
    if cfg.crop is not None:
        whole("data.crop", cfg.crop, low=1, high=parts[0][0].shape[-1] + 2 * cfg.pad, otherwise="null or ")
    random = {"augment": cfg.augment, "pad": cfg.pad, "crop": cfg.crop, "cutout": cfg.cutout}
    splits = [Images(x, y, mean, std, top, **(random if i == 0 else {})) for i, (x, y) in enumerate(parts)]
    spec = Spec(kind="image", shape=tuple(splits[0].images.shape[1:]), classes=len(class_names))
    return Data(spec, *splits, class_names=class_names)


def per_channel(key: str, values, channels: int) -> Tensor:
    """A list of one number per channel as float32 [C, 1, 1]. Raises UserError."""
    if not isinstance(values, (list, tuple)) or len(values) != channels:
        raise UserError(f"{key}={values} does not fit {channels}-channel images: give a list of {channels} numbers")
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def resize(images: Tensor, size: int, top: int) -> Tensor:
    """Square images of `size` pixels, 0..255. images: uint8 [N, C, H, W] in 0..top; works in pieces to bound the memory."""
    from torchvision.transforms.v2 import functional as v2

    def piece(x: Tensor) -> Tensor:
        bright = x.to(torch.float32) * (255 / top)
        return v2.resize(bright, [size, size], antialias=True).round().clamp(0, 255).to(torch.uint8)

    return torch.cat([piece(x) for x in images.split(1024)])
