"""Stripes: four columns of which 2:4 keeps the two larger values in every row."""

import torch
from torch import Tensor

GROUP = 4  # columns in a stripe, of which 2:4 keeps two


def rows_of(weight: Tensor) -> Tensor:
    """A weight [out, in, *kernel] as the matrix [out · kernel positions, in] whose columns are its input channels."""
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
