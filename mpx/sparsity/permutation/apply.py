"""Apply an order of channels to parameters, buffers, gradients and optimizer state."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpx.sparsity.permutation.channels import Axis, Group


@dataclass
class Permutation:
    """An order of channels: for each axis that changes, the old position of each new one. new[i] =
    old[index[i]]
    """

    indices: dict[Axis, Tensor] = field(default_factory=dict)  # int64 [size] on the CPU

    def add(self, group: Group, order: np.ndarray, sizes: Mapping[Axis, int]) -> None:
        """Give channel i the values of channel order[i], wherever they occur. Groups do not overlap, so their
        orders combine.
        """
        if (order == np.arange(len(order))).all():
            return
        for axis, places in group.positions.items():
            index = self.indices.setdefault(axis, torch.arange(sizes[axis]))
            index[torch.from_numpy(places.reshape(-1))] = torch.from_numpy(places[order].reshape(-1))

    def inverse(self) -> "Permutation":
        return Permutation({axis: index.argsort() for axis, index in self.indices.items()})

    @torch.no_grad()
    def apply(self, tensors: Mapping[str, Tensor]) -> None:
        """Reorder tensors in place, by name: a state_dict, or moving averages with its names and shapes.
        Other names are ignored.

        A dimension may have size 1 if it holds one value for a whole row or column, as in factored optimizer
        state.
        """
        for axis, index in self.indices.items():
            if axis.name in tensors:
                _reorder(tensors[axis.name], axis, index)

    def moves(self, name: str, dim: int) -> bool:
        return any(axis.name == name and axis.dim == dim for axis in self.indices)


def apply_everywhere(
    permutation: Permutation, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> None:
    """Reorder the model's parameters and buffers with their gradients and their optimizer state."""
    tensors = model.state_dict(keep_vars=True)
    permutation.apply(tensors)
    for name, tensor in tensors.items():
        apply_beside(permutation, name, tensor, optimizers)


def apply_beside(
    permutation: Permutation, name: str, parameter: Tensor, optimizers: Iterable[torch.optim.Optimizer]
) -> None:
    """Reorder the gradient and the optimizer state of `parameter` by the permutation of this name."""
    if parameter.grad is not None:
        permutation.apply({name: parameter.grad})
    for optimizer in optimizers:
        for key, value in _values(optimizer.state.get(parameter, {})):
            if (laid_out := _along(parameter, key, value)) is not None:
                permutation.apply({name: laid_out})


def stays_behind(parameters: Mapping[str, Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> str | None:
    """A sentence about the first optimizer state that `apply_beside` cannot reorder; None if it can reorder
    all. parameters: by name.
    """
    for optimizer in optimizers:
        for name, parameter in parameters.items():
            for key, value in _values(optimizer.state.get(parameter, {})):
                if _along(parameter, key, value) is None:
                    return (
                        f"{type(optimizer).__name__}'s state {key!r} of {name}, of shape "
                        f"{tuple(value.shape)}, cannot move along"
                    )
    return None


def _values(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """(key, tensor) for the tensors of one parameter's state, including those in lists, without single
    values.
    """
    for key, value in state.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Tensor) and one.numel() > 1:
                yield key, one


def _along(parameter: Tensor, key: str, value: Tensor) -> Tensor | None:
    """The state as a view with the parameter's dimensions, with size 1 in each dimension over which it is a
    mean. None for other shapes.

    torch's Adafactor keeps these dimensions. The one of fairseq, transformers and timm drops them; its keys
    tell rows from columns.
    """
    shape = parameter.shape
    if key.endswith("_row") and value.shape == shape[:-1]:
        return value.unsqueeze(-1)
    if key.endswith("_col") and value.shape == shape[:-2] + shape[-1:]:
        return value.unsqueeze(-2)
    fits = value.dim() == len(shape) and all(
        size in (1, whole) for size, whole in zip(value.shape, shape, strict=True)
    )
    return value if fits else None


def _reorder(tensor: Tensor, axis: Axis, index: Tensor) -> None:
    if tensor.shape[axis.dim] > 1:
        block = tensor if axis.rows is None else tensor[slice(*axis.rows)]
        block.copy_(block.index_select(axis.dim, index.to(tensor.device)))
