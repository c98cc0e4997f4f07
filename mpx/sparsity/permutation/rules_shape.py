"""Rules for operations that move or create elements without computing."""

from collections.abc import Callable

import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import UNIFORM, varies
from mpx.sparsity.permutation.walk import Walk

# fmt: off
MOVES = [  # these operations themselves are run on the labels
    "alias", "broadcast_to", "cat", "channel_shuffle", "chunk", "concat", "concatenate", "expand",
    "expand_as", "flatten", "flip",
    "movedim", "moveaxis", "narrow", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat",
    "repeat_interleave", "roll", "select",
    "slice", "split", "split_with_sizes", "squeeze", "stack", "swapaxes", "swapdims", "t", "tile",
    "transpose", "unbind", "unflatten",
    "unsqueeze",
]
# fmt: on
RESHAPES = ["reshape", "view", "_unsafe_view", "view_as", "reshape_as"]
LIKE_OTHER = ["expand_as", "reshape_as", "type_as", "view_as"]  # only the shape or type of `other` matters
COPIES = [
    "clone",
    "contiguous",
    "detach",
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "to",
    "_to_copy",
    "type_as",
]
# fmt: off
UNIFORM_VALUES = [  # including random values, whose distribution is the same everywhere
    "empty", "empty_like", "fill", "full", "full_like", "new_empty", "new_full", "new_ones", "new_zeros",
    "ones", "ones_like", "rand",
    "rand_like", "randn", "randn_like", "scalar_tensor", "zero", "zeros", "zeros_like",
]
# fmt: on


def reshape(walk: Walk, shapes: list[torch.Size], **given) -> Tensor:
    return next(iter(given.values())).reshape(shapes[0])


def copy(walk: Walk, shapes: list[torch.Size], **given) -> Tensor:
    return next(iter(given.values())).expand(shapes[0])


def uniform(walk: Walk, shapes: list[torch.Size], **_) -> Tensor:
    return walk.uniform(shapes[0])


def pad(
    walk: Walk, shapes: list[torch.Size], self: Tensor, pad: list[int], mode: str = "constant", **_
) -> Tensor:
    """Padding of positions does not affect channels. Channels padded with a constant are uniform."""
    padded = [self.dim() - 1 - number // 2 for number, amount in enumerate(pad) if amount]
    if mode == "constant" and any(varies(self, dim) for dim in padded):
        return torch.nn.functional.pad(self, pad, value=UNIFORM)
    if any(varies(self, dim) for dim in padded):
        return walk.give_up(shapes[0], self)
    for dim in padded:
        self = self.narrow(dim, 0, 1)
    return self.expand(shapes[0])


def index(walk: Walk, shapes: list[torch.Size], self: Tensor, indices: list[Tensor | None]) -> Tensor:
    """self[..., indices, ...]: channels may move if the indices select positions."""
    places = [None if one is None else torch.zeros(one.shape, dtype=torch.int64) for one in indices]
    if any(place is not None and varies(self, dim) for dim, place in enumerate(places)):
        return walk.give_up(shapes[0], self)
    return torch.ops.aten.index(self, places).expand(shapes[0])


def copied(walk: Walk, shapes: list[torch.Size], self: Tensor, src: Tensor, **_) -> Tensor:
    """self.copy_(src)."""
    return src.expand(shapes[0])


SHAPES: dict[str, Callable] = (
    dict.fromkeys(RESHAPES, reshape)
    | dict.fromkeys(COPIES, copy)
    | dict.fromkeys(UNIFORM_VALUES, uniform)
    | dict.fromkeys(["pad", "constant_pad_nd"], pad)
    | {"index": index, "copy": copied}
)
