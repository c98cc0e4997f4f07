"""Applying an order of channels to parameters, buffers, gradients and optimizer state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from mpx.sparsity.permutation.channels import Axis, Group


@dataclass
class Permutation:
    """For every axis that changes, where each position's values come from: new[i] = old[index[i]]."""

    indices: dict[Axis, Tensor] = field(default_factory=dict)  # int64 [size] on the CPU

    def add(self, group: Group, order: np.ndarray, sizes: Mapping[Axis, int]) -> None:
        """Channel i takes over the values of channel order[i], wherever they occur. Groups do not overlap, so their orders add up."""
        if (order == np.arange(len(order))).all():
            return
        for axis, places in group.positions.items():
            index = self.indices.setdefault(axis, torch.arange(sizes[axis]))
            index[torch.from_numpy(places.reshape(-1))] = torch.from_numpy(places[order].reshape(-1))

    def inverse(self) -> "Permutation":
        return Permutation({axis: index.argsort() for axis, index in self.indices.items()})

    @torch.no_grad()
    def apply(self, tensors: Mapping[str, Tensor]) -> None:
        """Reorder tensors in place, by name: a state_dict, or moving averages that have its names and shapes. Others are left alone."""
        for axis, index in self.indices.items():
            if axis.name in tensors:
                _reorder(tensors[axis.name], axis, index)

    def moves(self, name: str, dim: int) -> bool:
        return any(axis.name == name and axis.dim == dim for axis in self.indices)


@torch.no_grad()
def apply_everywhere(permutation: Permutation, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Reorder the model's parameters and buffers with their gradients, and every optimizer state of a parameter's shape."""
    tensors = model.state_dict(keep_vars=True)
    permutation.apply(tensors)
    for name, parameter in tensors.items():
        if parameter.grad is not None:
            permutation.apply({name: parameter.grad})
        for optimizer in optimizers:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    permutation.apply({name: value})


def _reorder(tensor: Tensor, axis: Axis, index: Tensor) -> None:
    block = tensor if axis.rows is None else tensor[slice(*axis.rows)]
    block.copy_(block.index_select(axis.dim, index.to(tensor.device)))
