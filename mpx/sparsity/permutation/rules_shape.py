"""Rules for operations that compute nothing: they move elements, or make them."""

import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import UNIFORM, varies
from mpx.sparsity.permutation.walk import Walk

# Run on the labels themselves.
# fmt: off
MOVES = [
    "alias", "broadcast_to", "cat", "channel_shuffle", "chunk", "concat", "concatenate", "expand", "expand_as", "flatten", "flip",
    "movedim", "moveaxis", "narrow", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "roll", "select", "slice", "split",
    "split_with_sizes", "squeeze", "stack", "swapaxes", "swapdims", "t", "tile", "transpose", "unbind", "unflatten", "unsqueeze",
]
# fmt: on
RESHAPES = ["reshape", "view", "_unsafe_view", "view_as", "reshape_as"]
COPIES = ["clone", "contiguous", "detach", "dropout", "feature_dropout", "alpha_dropout", "to", "_to_copy", "type_as"]
UNIFORM_VALUES = ["zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor"]


def reshape(walk: Walk, shapes: list[torch.Size], **given) -> Tensor:
    return next(iter(given.values())).reshape(shapes[0])


def copy(walk: Walk, shapes: list[torch.Size], **given) -> Tensor:
    return next(iter(given.values())).expand(shapes[0])


def uniform(walk: Walk, shapes: list[torch.Size], **_) -> Tensor:
    return walk.uniform(shapes[0])


def pad(walk: Walk, shapes: list[torch.Size], self: Tensor, pad: list[int], mode: str = "constant", **_) -> Tensor:
    """Padding of positions leaves channels alone; channels that a constant adds are the same everywhere."""
    padded = [self.dim() - 1 - number // 2 for number, amount in enumerate(pad) if amount]
    if mode == "constant" and any(varies(self, dim) for dim in padded):
        return torch.nn.functional.pad(self, pad, value=UNIFORM)
    if any(varies(self, dim) for dim in padded):
        return walk.give_up(self, shapes[0])
    for dim in padded:
        self = self.narrow(dim, 0, 1)
    return self.expand(shapes[0])


SHAPES = (
    dict.fromkeys(RESHAPES, reshape)
    | dict.fromkeys(COPIES, copy)
    | dict.fromkeys(UNIFORM_VALUES, uniform)
    | dict.fromkeys(["pad", "constant_pad_nd"], pad)
)
