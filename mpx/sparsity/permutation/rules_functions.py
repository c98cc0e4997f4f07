"""Rules for operations without parameters: those that compute (element-wise functions, reductions, matrix
products, pooling), and those that move or create elements.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpx.private.torch_dispatch import tree_flatten
from mpx.sparsity.permutation.channels import UNIFORM, varies
from mpx.sparsity.permutation.walk import Walk

# fmt: off
ELEMENTWISE = [
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "bernoulli", "bitwise_and", "bitwise_not",
    "bitwise_or", "celu", "ceil",
    "clamp", "clamp_max", "clamp_min", "clip", "cos", "cosh", "deg2rad", "div", "divide", "elu", "eq", "erf",
    "erfc", "exp", "expm1",
    "exponential", "floor", "fmod", "gelu", "ge", "gt", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "isfinite", "isinf", "isnan",
    "le", "leaky_relu", "lerp", "log", "log10", "log1p", "log2", "log_sigmoid", "logical_and", "logical_not",
    "logical_or", "lt",
    "masked_fill", "maximum", "minimum", "mish", "mul", "multiply", "ne", "neg", "negative", "nan_to_num",
    "normal", "pow", "reciprocal",
    "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sigmoid", "sign", "silu", "sin", "sinh",
    "softplus", "softshrink",
    "softsign", "sqrt", "square", "sub", "subtract", "tan", "tanh", "tanhshrink", "threshold", "true_divide",
    "trunc", "uniform", "where",
    "xlogy",
]
# fmt: on
REDUCTIONS = [
    "all",
    "amax",
    "amin",
    "any",
    "linalg_vector_norm",
    "logsumexp",
    "mean",
    "norm",
    "prod",
    "std",
    "sum",
    "var",
]
POOLS = (
    "avg_pool",
    "max_pool",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "upsample_nearest",
    "upsample_bilinear",
)
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


def elementwise(walk: Walk, shapes: list[torch.Size], **given) -> Tensor:
    merged, *others = (value for value in tree_flatten(list(given.values()))[0] if isinstance(value, Tensor))
    for operand in others:
        merged = walk.merge(merged, operand)
    return merged.expand(shapes[0])


def softmax(walk: Walk, shapes: list[torch.Size], self: Tensor, dim: int, **_) -> Tensor:
    walk.join(self, (dim % self.dim(),))
    return self


def glu(walk: Walk, shapes: list[torch.Size], self: Tensor, dim: int = -1) -> Tensor:
    """The halves along `dim` are values and their gates."""
    return walk.merge(*self.chunk(2, dim))


def reduction(
    walk: Walk,
    shapes: list[torch.Size],
    self: Tensor,
    dim: int | list[int] | None = None,
    keepdim: bool = False,
    **_,
) -> Tensor:
    """A sum over channels does not depend on their order."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(self.dim()))
    dims = sorted({one % self.dim() for one in dims}, reverse=True)
    if any(varies(self, one) for one in dims):
        walk.tag_rows(self, tuple(dims))
        return walk.fixed(shapes[0], f"{walk.operation} joins all channels")
    for one in dims:
        self = self.narrow(one, 0, 1) if keepdim else self.select(one, 0)
    return self


def pool(walk: Walk, shapes: list[torch.Size], **given: Any) -> list[Tensor]:
    """Pooling and resizing of [batch, channels, *positions]: `self` or `input`."""
    channels = walk.along(given["self"] if "self" in given else given["input"], 1)
    return [walk.spread(channels, 1, shape) for shape in shapes]


def matmul(walk: Walk, shapes: list[torch.Size], self: Tensor, **given: Any) -> Tensor:
    """self [..., m, k] @ other (or mat2) [..., k, n]. Channels may be summed over (k), or pass through (m,
    n).
    """
    one, other = self, given["other"] if "other" in given else given["mat2"]
    if one.dim() < 2 or other.dim() < 2:
        return walk.give_up(shapes[0], one, other)
    summed = varies(one, -1) or varies(other, -2)
    if summed and not varies(one, -2) and not varies(other, -1):
        ones, others = one.select(-2, 0), other.select(-1, 0)  # [..., k]
        walk.tie(ones, others)
        walk.tag_rows(ones, (ones.dim() - 1,))
        walk.tag_rows(others, (others.dim() - 1,))
        return walk.fixed(shapes[0], f"{walk.operation} sums over channels")
    for still, moving, dim in ((one, other, -2), (other, one, -1)):
        if not summed and bool((still <= UNIFORM).all()):
            walk.tag_rows(moving, (moving.dim() - 2, moving.dim() - 1))
            return moving.narrow(dim, 0, 1).expand(shapes[0])
    return walk.give_up(shapes[0], one, other)


def attention(
    walk: Walk,
    shapes: list[torch.Size],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    **_,
) -> Tensor:
    """query, key, value: [..., heads, tokens, features]. In a head, query's and key's features move together;
    value's pass through.
    """
    if attn_mask is not None:
        walk.channels.pin(attn_mask, f"the mask of {walk.operation}")
    if (
        any(varies(labels, -2) for labels in (query, key, value))
        or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    ):
        return walk.give_up(shapes[0], query, key, value)
    walk.tie(query.select(-2, 0), key.select(-2, 0))
    for labels in (query, key, value):
        walk.tag_rows(labels, (labels.dim() - 1,))
    return value.narrow(-2, 0, 1).expand(shapes[0])


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


FUNCTIONS: dict[str, Callable] = (
    dict.fromkeys(ELEMENTWISE, elementwise)
    # g ÷ ‖v‖ · v: the norm of a row or column does not depend on the order in it
    | {"_weight_norm": elementwise}
    | dict.fromkeys(["softmax", "log_softmax", "_softmax", "_log_softmax"], softmax)
    | dict.fromkeys(REDUCTIONS, reduction)
    | {"glu": glu}
    | dict.fromkeys([f"{name}{dims}d" for name in POOLS for dims in (1, 2, 3)], pool)
    | dict.fromkeys(["matmul", "mm", "bmm"], matmul)
    | {"scaled_dot_product_attention": attention}
    | dict.fromkeys(RESHAPES, reshape)
    | dict.fromkeys(COPIES, copy)
    | dict.fromkeys(UNIFORM_VALUES, uniform)
    | dict.fromkeys(["pad", "constant_pad_nd"], pad)
    | {"index": index, "copy": copied}
)
