"""Random shifts, flips and cut-out squares for a whole batch at once, with a separate draw for each sample.

torchvision.transforms.v2 draws once per batch, so mpx has its own code. All draws of an epoch are made on the
CPU. They depend on (seed, epoch, sample) only, not on the device, the batch size or the number of workers.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from mpx.data.order import generator


def draw(count: int, augment: str, places: int, seed: int, epoch: int) -> Tensor | None:
    """Rows (top, left, mirrored) for `count` samples, int16 [count, 3] on the CPU, corners in [0, places);
    None without augmentation.

    Each image is mirrored in every second epoch, starting at random, so that both sides are seen equally
    often (Jordan 2024, arXiv:2404.00498).
    """
    if augment == "none":
        return None
    corner = torch.randint(
        0, places, (count, 2), generator=generator(seed, "augment", epoch), dtype=torch.int16
    )
    if augment == "crop":
        return torch.cat([corner, torch.zeros_like(corner[:, :1])], dim=1)
    coin = torch.randint(0, 2, (count, 1), generator=generator(seed, "mirror", 0), dtype=torch.int16)
    return torch.cat([corner, coin ^ (epoch % 2)], dim=1)


def crop_flip(x: Tensor, rows: Tensor, pad: int, crop: int | None = None) -> Tensor:
    """Pad each image with `pad` black pixels, cut it at its own corner to `crop` pixels a side (None: its old
    size), mirror it if drawn.

    x: [B, C, H, W]; rows: int [B, 3] of (top, left, mirrored), on the same device. Returns [B, C, h, w] of
    the same type.
    """
    batch, channels = x.shape[:2]
    height, width = x.shape[2:] if crop is None else (crop, crop)
    top, left, mirrored = rows.long().unbind(1)
    across = torch.arange(width, device=x.device).expand(batch, width)
    across = left[:, None] + torch.where(mirrored[:, None] == 1, width - 1 - across, across)  # [B, W]
    down = top[:, None] + torch.arange(height, device=x.device)  # [B, H]
    padded = F.pad(x, (pad, pad, pad, pad))
    sample = torch.arange(batch, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[sample, channel, down[:, None, :, None], across[:, None, None, :]]


def draw_centres(count: int, height: int, width: int, seed: int, epoch: int) -> Tensor:
    """Rows (down, across) of the centres of the cut-out squares of `count` images, int16 [count, 2] on the
    CPU.
    """
    random = generator(seed, "cutout", epoch)
    centres = [
        torch.randint(0, pixels, (count,), generator=random, dtype=torch.int16) for pixels in (height, width)
    ]
    return torch.stack(centres, dim=1)


def cut_out(x: Tensor, centres: Tensor, side: int) -> Tensor:
    """Set a square of each image to zero, the mean of normalised images; it may overlap the edge (Cutout,
    arXiv:1708.04552).

    x: float [B, C, H, W]; centres: int16 [B, 2], on the same device; side: pixels of the square. Returns [B,
    C, H, W].
    """
    first = centres.long() - side // 2
    down, across = (
        torch.arange(pixels, device=x.device) - start[:, None]
        for pixels, start in zip(x.shape[2:], first.unbind(1), strict=True)
    )
    # [B, H], [B, W]
    within_rows, within_columns = ((offset >= 0) & (offset < side) for offset in (down, across))
    return x.masked_fill((within_rows[:, :, None] & within_columns[:, None, :])[:, None], 0)


def normalise(x: Tensor, top: int, mean: Tensor, std: Tensor) -> Tensor:
    """(x / top − mean) / std per channel. x: uint8 [B, C, H, W] in 0..top; mean, std: [C, 1, 1]. Returns
    float32.
    """
    # division converts, too, in one pass
    return torch.div(x, top).sub_(mean.to(x.device)).div_(std.to(x.device))
