"""Mask calculators by apex's names: a weight [out, in, ...] -> a bool tensor of its shape, True where it stays.

Source: NVIDIA apex, apex/contrib/sparsity/sparse_masklib.py; for the 2-D ones mpx/sparsity/tiles.py and what it cites.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpx.errors import UserError, nearest
from mpx.sparsity.patterns import laid_out_as, magnitudes
from mpx.sparsity.tiles import Tiles

BEYOND = 2.0**126  # in place of an infinite or NaN weight: the sum of two is finite
PAIRS = [(1, 3), (0, 1), (1, 2), (0, 2), (0, 3), (2, 3)]  # apex's order, list(set(permutations(…))): the first among equal sums wins


def m4n2_1d(weight: Tensor) -> Tensor:
    """Of every 4 neighbours along the inputs the two with the largest sum of magnitudes, in FP32, as apex adds them.

    Sums, not ranks: beside one large value two small ones may round to equal sums, and then apex takes its first pattern. Infinite
    and NaN weights are among the two. apex takes its first pattern there, but its product leaves the NaN in the weight.
    """
    rows = magnitudes(weight.detach().float(), BEYOND).movedim(1, -1)
    fours = rows.reshape(-1, 4)
    best = torch.stack([fours[:, a] + fours[:, b] for a, b in PAIRS], 1).argmax(1)
    patterns = torch.zeros(len(PAIRS), 4, dtype=torch.bool)
    for number, pair in enumerate(PAIRS):
        patterns[number, list(pair)] = True
    kept = patterns.to(weight.device)[best]
    return laid_out_as(kept.view(rows.shape).movedim(-1, 1), weight)


def m4n2_2d_best(weight: Tensor) -> Tensor:
    """2:4 along inputs and outputs: of the 90 patterns of each 4×4 tile the one with the largest sum of magnitudes."""
    return Tiles("best").mask(weight)


def m4n2_2d_greedy(weight: Tensor) -> Tensor:
    """2:4 along inputs and outputs: the largest values of each 4×4 tile one by one, while their row and column have room."""
    return Tiles("greedy").mask(weight)


NAMED = {function.__name__: function for function in (m4n2_1d, m4n2_2d_best, m4n2_2d_greedy)}


def calculator(given: Any) -> Callable[[Tensor], Tensor]:
    """The function of a name, or the user's own. Raises UserError for anything else."""
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    if callable(given):
        return given
    hint = nearest(given, NAMED) if isinstance(given, str) else ""
    raise UserError(f"ASP: mask_calculator={given!r}: allowed are {', '.join(NAMED)}, or a function weight -> mask.{hint}")


def checked(mask: Any, weight: Tensor, name: str) -> Tensor:
    """A calculator's answer as a bool mask on the weight's device. Raises UserError if it is no mask for this weight."""
    if not isinstance(mask, Tensor) or mask.shape != weight.shape:
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise UserError(f"ASP: mask_calculator returned {got} for {name}: it must return a tensor of shape {tuple(weight.shape)}.")
    return mask.to(weight.device).bool()
