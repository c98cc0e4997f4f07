"""Stripes: four columns of which 2:4 keeps the two larger values in every row, and the best ones of few
columns.

Those are found by dynamic programming: the best stripes of a set are one stripe and the best stripes of the
rest.
"""

from functools import cache
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

GROUP = 4  # columns in a stripe, of which 2:4 keeps two
AT_ONCE = 128  # stripes per chunk, which bounds the memory


def rows_of(weight: Tensor) -> Tensor:
    """A weight [out, in, *kernel] as the matrix [out · kernel positions, in] whose columns are its input
    channels.
    """
    return weight.detach().transpose(1, -1).reshape(-1, weight.shape[1])


def kept(columns: Tensor) -> float:
    """Σ of the 2 largest of every 4 neighbours. columns: magnitudes [columns, rows]."""
    return float(kept_by_stripe(columns).sum())


def kept_by_stripe(columns: Tensor) -> Tensor:
    """As `kept`, for each stripe: float64 [stripes]."""
    a, b, c, d = columns.unflatten(0, (-1, GROUP)).unbind(1)
    largest = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
    of_losers = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
    second = torch.maximum(of_losers, torch.minimum(torch.maximum(a, b), torch.maximum(c, d)))
    return largest.sum(1, dtype=torch.float64) + second.sum(1, dtype=torch.float64)


def best_stripes(columns: Tensor) -> np.ndarray:
    """The stripes that keep most: int64 [stripes, 4], column numbers. columns: magnitudes [columns, rows]."""
    count = len(columns)
    stripes = _subsets(count, GROUP)
    # per set (bits of an index): what it keeps, its first stripe
    most, first = np.zeros(2**count), np.zeros(2**count, dtype=np.int64)
    number = (1 << stripes).sum(1)
    most[number], first[number] = _kept(columns, stripes), number
    for size in range(2 * GROUP, count + 1, GROUP):
        members = 1 << _subsets(count, size, without_first=size < count)  # [sets, size]
        whole = members.sum(1)
        # [sets, ways]: all stripes with the first member
        stripe = members[:, :1] + members[:, 1 + _subsets(size - 1, GROUP - 1)].sum(2)
        value = most[stripe] + most[whole[:, None] - stripe]
        chosen = value.argmax(1)[:, None]
        most[whole], first[whole] = (
            np.take_along_axis(value, chosen, 1)[:, 0],
            np.take_along_axis(stripe, chosen, 1)[:, 0],
        )
    found, rest = [], 2**count - 1
    while rest:
        found.append([one for one in range(count) if first[rest] >> one & 1])
        rest -= first[rest]
    return np.array(found)


def _kept(columns: Tensor, stripes: np.ndarray) -> np.ndarray:
    parts = torch.from_numpy(stripes).to(columns.device).split(AT_ONCE)
    return torch.cat([kept_by_stripe(columns[part.flatten()]) for part in parts]).cpu().numpy()


@cache
def _subsets(count: int, size: int, *, without_first: bool = False) -> np.ndarray:
    """Every set of `size` numbers below `count`, int64 [sets, size]."""
    return np.array(list(combinations(range(int(without_first), count), size)))
