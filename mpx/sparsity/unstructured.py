"""No structure: the largest values of a layer stay, wherever they are. A baseline for accuracy; no hardware is faster with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mpx.sparsity.patterns import Pattern, laid_out_as, magnitudes


@dataclass(frozen=True)
class Unstructured(Pattern):
    """density: share of each layer's values that stays, 0 to 1; ranked within the layer, not across layers, as the other patterns are.

    Source: Han et al., Learning both Weights and Connections, arXiv:1506.02626.
    """

    density: float
    name = "unstructured"

    def kept(self, size: int) -> int:
        """Values that stay, of `size`."""
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
    """The `count` largest magnitudes of a whole tensor of any shape, the earlier (row by row) among equals: a bool tensor of that shape."""
    order = magnitudes(values.detach()).flatten().argsort(stable=True, dim=0, descending=True)
    return torch.zeros_like(order, dtype=torch.bool).index_fill_(0, order[:count], True).view(values.shape)
