"""Test-time augmentation: logits averaged over views of an image (Jordan 2024, arXiv:2404.00498, section 3.5)."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F


def averaged(forward: Callable[[Tensor], Tensor], x: Tensor, kind: str) -> Tensor:
    """Logits [B, classes] of images x [B, C, H, W], in FP32 if there are several views. With kind=none, x may be any input.

    kind: none takes the image alone, flip also its mirror image. flip_shift gives these two half of the weight, and a quarter each to the
    same two moved one pixel down and right, and one pixel up and left, with the border mirrored.
    """
    if kind == "none":
        return forward(x)
    logits = _both_ways(forward, x)
    if kind == "flip":
        return logits
    height, width = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1), mode="reflect")
    moved = [_both_ways(forward, padded[:, :, at : at + height, at : at + width]) for at in (0, 2)]
    return logits / 2 + sum(moved) / 4


def _both_ways(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return (forward(x).float() + forward(x.flip(-1)).float()) / 2
