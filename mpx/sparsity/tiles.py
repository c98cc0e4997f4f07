"""2of4 in both directions: each 4×4 tile keeps two values in every row and in every column. Both the weight
and its transpose are then 2:4 sparse, so the backward pass can use sparse kernels as well.

Source: Hubara et al., Accelerated Sparse Neural Training, arXiv:2102.08124 (transposable masks). The greedy
search follows PyTorch's `torch._sparse_semi_structured_tile(algorithm="largest_abs_values_greedy")`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpx.sparsity.patterns import Pattern, laid_out_as, magnitudes

SIDE = 4
PAIRS = list(combinations(range(SIDE), 2))  # the columns that a row keeps, earlier columns first
# the 90 patterns, each as its four rows' indices into PAIRS; patterns that keep earlier positions come first
ROWS = [
    rows
    for rows in product(range(len(PAIRS)), repeat=SIDE)
    if all(sum(c in PAIRS[row] for row in rows) == 2 for c in range(SIDE))
]
CHUNK = 1 << 18  # tiles per chunk: bounds the memory for their 90 sums
BEYOND = 2.0**1000  # stands for an infinite or NaN weight: sums of up to 16 of them are exact in FP64


@dataclass(frozen=True)
class Tiles(Pattern):
    """2of4 along both the inputs and the outputs of a weight [out, in, ...], per kernel position.

    search: "best" takes the pattern with the largest Σ|w| of the 90, the first of equals. "greedy" takes the
    largest values one by one while their row and column have room, as PyTorch's kernel does. It may be left
    with 7 values, none of which makes room for an eighth; then it keeps more magnitude than "best" now and
    then, otherwise never. Tiles at a border are padded with zeros.
    """

    search: str = "best"
    name = "2of4_2d"
    rows = 16

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        keep = best if self.search == "best" else greedy
        return [self._back(keep(self._tiles(weight)), weight) for weight in weights]

    def holds(self, weight: Tensor) -> Tensor:
        full = (self._tiles(weight) != 0).unflatten(1, (SIDE, SIDE))
        return ((full.sum(1) <= 2) & (full.sum(2) <= 2)).all()

    def misfit(self, shape: Sequence[int]) -> str | None:
        out, inputs = shape[:2]
        return f"{out}×{inputs}, of which 2of4_2d keeps all" if out <= 2 and inputs <= 2 else None

    def _tiles(self, weight: Tensor) -> Tensor:
        """[out, in, k...] -> [tiles, 16], row by row."""
        # [k, out, in]
        planes = weight.detach().flatten(2).movedim(-1, 0) if weight.dim() > 2 else weight.detach()[None]
        out, inputs = planes.shape[1:]
        planes = pad(planes, (0, -inputs % SIDE, 0, -out % SIDE))
        tiles = planes.unflatten(2, (-1, SIDE)).unflatten(1, (-1, SIDE))  # [k, out/4, 4, in/4, 4]
        return tiles.transpose(2, 3).reshape(-1, SIDE * SIDE)

    def _back(self, kept: Tensor, weight: Tensor) -> Tensor:
        out, inputs, *kernel = weight.shape
        down, across = -(-out // SIDE), -(-inputs // SIDE)
        planes = (
            kept.view(prod(kernel), down, across, SIDE, SIDE)
            .transpose(2, 3)
            .reshape(prod(kernel), down * SIDE, across * SIDE)
        )
        return laid_out_as(planes[:, :out, :inputs].movedim(0, -1).reshape(out, inputs, *kernel), weight)


def best(tiles: Tensor) -> Tensor:
    """The pattern with the largest Σ|w| of each tile. tiles: [n, 16]; returns bool [n, 16].

    The sums are computed in FP64 and in a fixed order, not by a matrix product, so that every device finds
    the same patterns.
    """
    patterns = torch.tensor(ROWS, device=tiles.device)  # [90, 4]
    keeps = torch.zeros(len(PAIRS), SIDE, dtype=torch.bool).scatter_(1, torch.tensor(PAIRS), True)
    flat = keeps.to(tiles.device)[patterns].flatten(1)  # [90, 16]
    return torch.cat(
        [flat[_largest(magnitudes(chunk.double(), BEYOND), patterns)] for chunk in tiles.split(CHUNK)]
    )


def _largest(tiles: Tensor, patterns: Tensor) -> Tensor:
    """Index of the best pattern of each tile. tiles: [n, 16] magnitudes."""
    rows = tiles.unflatten(1, (SIDE, SIDE))  # [n, 4, 4]
    pairs = torch.stack([rows[..., a] + rows[..., b] for a, b in PAIRS], -1)  # [n, 4, 6]
    sums = pairs[:, 0, patterns[:, 0]]
    for row in range(1, SIDE):
        sums += pairs[:, row, patterns[:, row]]
    return sums.argmax(1)  # the first of equals


def greedy(tiles: Tensor) -> Tensor:
    """Keep values from the largest magnitude down while their row and column have room. tiles: [n, 16];
    returns bool [n, 16].
    """
    order = magnitudes(tiles).argsort(stable=True, dim=1, descending=True)
    kept = torch.zeros_like(tiles, dtype=torch.bool)
    rows = torch.zeros(len(tiles), SIDE, dtype=torch.uint8, device=tiles.device)  # kept so far
    columns = torch.zeros_like(rows)
    for place in order.split(1, dim=1):  # [n, 1]
        row, column = place // SIDE, place % SIDE
        room = (rows.gather(1, row) < 2) & (columns.gather(1, column) < 2)
        kept.scatter_(1, place, room)
        rows.scatter_add_(1, row, room.to(torch.uint8))
        columns.scatter_add_(1, column, room.to(torch.uint8))
    return kept
