"""Mask calculators under apex's names: weight [out, in, ...] -> bool tensor of its shape, True where a value stays.

Source: NVIDIA apex, apex/contrib/sparsity/sparse_masklib.py; for the 2-D masks mpx/sparsity/tiles.py and its sources.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpx.errors import UserError, nearest
from mpx.sparsity.patterns import laid_out_as, magnitudes
from mpx.sparsity.tiles import Tiles

BEYOND = 2.0**126  # stands for an infinite or NaN weight: the sum of two is finite
PAIRS = [(1, 3), (0, 1), (1, 2), (0, 2), (0, 3), (2, 3)]  # apex's order, list(set(permutations(…))): the first of equal sums wins


def m4n2_1d(weight: Tensor) -> Tensor:
    """Keep the two of every 4 neighbours along the inputs with the largest sum of magnitudes, added in FP32 as in apex.

    The rule uses sums instead of ranks: added to a large value, two small values may round to equal sums, and apex takes its first pattern.
    Infinite and NaN weights rank above finite ones. For them apex also takes its first pattern, but its product keeps the NaN in the
    weight.
    """
    rows = magnitudes(weight.detach().float(), BEYOND).movedim(1, -1)
    fours = rows.reshape(-1, 4)
    best = torch.stack([fours[:, a] + fours[:, b] for a, b in PAIRS], 1).argmax(1)
    patterns = torch.zeros(len(PAIRS), 4, dtype=torch.bool).scatter_(1, torch.tensor(PAIRS), True)
    kept = patterns.to(weight.device)[best]
    return laid_out_as(kept.view(rows.shape).movedim(-1, 1), weight)


def m4n2_2d_best(weight: Tensor) -> Tensor:
    """2:4 along inputs and outputs: the pattern of each 4×4 tile, of 90, with the largest sum of magnitudes."""
    return Tiles("best").mask(weight)


def m4n2_2d_greedy(weight: Tensor) -> Tensor:
    """2:4 along inputs and outputs: the largest values of each 4×4 tile, one by one while their row and column have room."""
    return Tiles("greedy").mask(weight)


NAMED = {function.__name__: function for function in (m4n2_1d, m4n2_2d_best, m4n2_2d_greedy)}


def calculator(given: Any) -> Callable[[Tensor], Tensor]:
    """The calculator of this name, or the user's own function. Raises UserError for anything else."""
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    if callable(given):
        return given
    hint = nearest(given, NAMED) if isinstance(given, str) else ""
    raise UserError(f"ASP: mask_calculator={given!r}: allowed are {', '.join(NAMED)}, or a function weight -> mask.{hint}")


def checked(mask: Any, weight: Tensor, name: str) -> Tensor:
    """A calculator's result as a bool mask on the weight's device. Raises UserError if its type or shape is wrong."""
    if not isinstance(mask, Tensor) or mask.shape != weight.shape:
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise UserError(f"ASP: mask_calculator returned {got} for {name}: it must return a tensor of shape {tuple(weight.shape)}.")
    return mask.to(weight.device).bool()
