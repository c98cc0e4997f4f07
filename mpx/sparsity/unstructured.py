"""Unstructured pruning: the largest values of a layer stay, at any position. A baseline for accuracy, since no hardware runs it faster."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mpx.sparsity.patterns import Pattern, laid_out_as, magnitudes


@dataclass(frozen=True)
class Unstructured(Pattern):
    """density: share (0 to 1) of each layer's values that stay. Values are ranked within their layer, as in the other patterns.

    Source: Han et al., Learning both Weights and Connections, arXiv:1506.02626.
    """

    density: float
    name = "unstructured"

    def kept(self, size: int) -> int:
        """How many of `size` values stay."""
        return round(self.density * size)

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        return [laid_out_as(largest(weight, self.kept(weight.numel())), weight) for weight in weights]

    def holds(self, weight: Tensor) -> Tensor:
        return (weight.detach() != 0).sum() <= self.kept(weight.numel())

    def misfit(self, shape: Sequence[int]) -> str | None:
        size = torch.Size(shape).numel()
        kept = self.kept(size)
        return f"{kept} of {size} weights would stay at density {self.density:g}" if kept in (0, size) else None


def largest(values: Tensor, count: int) -> Tensor:
    """A bool tensor that marks the `count` largest magnitudes of a tensor. Of equal magnitudes the earlier (row by row) wins."""
    order = magnitudes(values.detach()).flatten().argsort(stable=True, dim=0, descending=True)
    return torch.zeros_like(order, dtype=torch.bool).index_fill_(0, order[:count], True).view(values.shape)
