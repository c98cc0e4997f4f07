"""A linear layer with a 2:4 weight, in place of a dense one: same inputs, same outputs, same memory layout."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mpx.private.torch_kernels import compress_2of4, fastest_mm_2of4, mm_2of4

ALGORITHM = ("alg_id", "split_k", "split_k_mode")  # what a search finds, as arguments of the product
TOKENS = 16  # cuSPARSELt takes activations in multiples of this


@dataclass(frozen=True)
class Way:
    """How the product becomes [tokens, out] with the bias added.

    transposed: cuSPARSELt writes it so; otherwise the addition of the bias turns it. bias: cuSPARSELt adds the bias.
    """

    transposed: bool
    bias: bool

    def __str__(self) -> str:
        return f"{'written' if self.transposed else 'turned'}{', bias within' if self.bias else ''}"


WAYS = (Way(True, True), Way(True, False), Way(False, False))


@torch.library.custom_op("mpx::linear_2of4", mutates_args=())
def linear_2of4(x: Tensor, packed: Tensor, bias: Tensor | None, out: int, algorithm: list[int], transposed: bool, within: bool) -> Tensor:
    """x [tokens, in] -> [tokens, out], contiguous. An operation of its own, so that torch.compile takes it as it is."""
    chosen = dict(zip(ALGORITHM, algorithm, strict=False))
    found = mm_2of4(packed, x.t(), None, bias=bias if within else None, transposed=transposed, **chosen)
    if not transposed:
        found = found.t()
    if bias is None or within:
        return found.contiguous()
    return torch.add(found, bias, out=x.new_empty(len(x), out))


@linear_2of4.register_fake
def _(x: Tensor, packed: Tensor, bias: Tensor | None, out: int, algorithm: list[int], transposed: bool, within: bool) -> Tensor:
    return x.new_empty(x.shape[0], out)


class Linear2of4(nn.Module):
    """Computes what `dense`, whose weight has the 2:4 pattern, computes. The first call with a number of tokens searches the algorithm."""

    def __init__(self, dense: nn.Linear, way: Way):
        super().__init__()
        self.out, self.way = dense.out_features, way
        self.register_buffer("packed", compress_2of4(dense.weight.detach()))
        self.register_buffer("bias", None if dense.bias is None else dense.bias.detach())
        self.algorithms: dict[int, list[int]] = {}  # by the number of tokens

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        tokens = rows.shape[0]
        if tokens % TOKENS:  # pad copies even where there is nothing to add
            rows = pad(rows, (0, 0, 0, -tokens % TOKENS))
        rows = rows.contiguous()
        if tokens not in self.algorithms:
            bias = self.bias if self.way.bias else None
            found = fastest_mm_2of4(self.packed, rows.t(), None, bias=bias, transposed=self.way.transposed)
            self.algorithms[tokens] = [found[name] for name in ALGORITHM if name in found]
        found = linear_2of4(rows, self.packed, self.bias, self.out, self.algorithms[tokens], self.way.transposed, self.way.bias)
        return found[:tokens].unflatten(0, x.shape[:-1])
