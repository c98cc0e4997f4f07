"""What the rules for operations see of the walk through the graph: labels of activations, atoms of parameters."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import UNIFORM, Axis, Channels, varies


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer, standing for itself in an operation's arguments."""

    name: str  # its key in the model's state_dict, the first one if it is shared
    shape: tuple[int, ...]


@dataclass
class Walk:
    """The state of one walk, and the words that rules are written in."""

    channels: Channels = field(default_factory=Channels)
    operation: str = ""  # the one being looked at, for reasons

    def labels(self, value: Tensor | Parameter) -> Tensor:
        """The labels of an activation, or of a parameter used as one: its last or only dimension is taken for the channels."""
        if isinstance(value, Tensor):
            return value
        wide = [dim for dim, size in enumerate(value.shape) if size > 1]
        for dim in wide[:-1]:
            self.channels.pin(self.axis(value, dim), f"{value.name} is used outside a layer, by {self.operation}")
        if not wide:
            return self.uniform(value.shape)
        shape = [size if dim == wide[-1] else 1 for dim, size in enumerate(value.shape)]
        return self.axis(value, wide[-1]).view(shape).expand(value.shape)

    def axis(self, value: Parameter, dim: int, rows: tuple[int, int] | None = None) -> Tensor:
        """The atoms of a parameter's dimension, int64 [size]."""
        return self.channels.axis(Axis(value.name, dim, rows), value.shape[dim])

    def tie(self, one: Tensor, other: Tensor) -> None:
        self.channels.tie(one, other)

    def tag(self, labels: Tensor, by: Tensor | None = None) -> None:
        self.channels.tag(labels, by)

    def tag_rows(self, labels: Tensor, dims: tuple[int, ...]) -> None:
        """An operation joins the elements along `dims`: its channels may change places within those, not with the next row's."""
        rest = [1 if dim in dims or not varies(labels, dim) else size for dim, size in enumerate(labels.shape)]
        number = torch.arange(int(torch.tensor(rest).prod())).view(rest)
        self.tag(labels, number)

    def along(self, labels: Tensor, dim: int) -> Tensor:
        """The labels of one dimension, int64 [size], where the others do not matter; else nothing may move."""
        dim %= labels.dim()
        if any(varies(labels, other) for other in range(labels.dim()) if other != dim):
            return self.give_up(labels, labels.shape[dim : dim + 1])
        return labels.movedim(dim, 0).reshape(labels.shape[dim], -1)[:, 0]

    def spread(self, atoms: Tensor, dim: int, shape: torch.Size) -> Tensor:
        """Labels of this shape that follow `atoms` along `dim`."""
        view = [1] * len(shape)
        view[dim] = -1
        return atoms.view(view).expand(shape)

    def merge(self, one: Tensor, other: Tensor) -> Tensor:
        """Labels of an element-wise result of two operands."""
        shape = torch.broadcast_shapes(one.shape, other.shape)
        for still, moving in ((one, other), (other, one)):
            if bool((still <= UNIFORM).all()) and _broadcast_where_it_varies(still, moving):
                return moving.expand(shape)
        self.tie(one, other)
        one, other = torch.broadcast_tensors(one, other)
        return torch.where(one == UNIFORM, other, one)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return torch.tensor(UNIFORM).expand(shape)

    def fixed(self, shape: tuple[int, ...], reason: str) -> Tensor:
        return torch.tensor(self.channels.fixed(reason)).expand(shape)

    def hold(self, value: Tensor | Parameter, reason: str) -> None:
        """None of its channels moves."""
        axes = [self.axis(value, dim) for dim in range(len(value.shape))] if isinstance(value, Parameter) else [value]
        for axis in axes:
            self.channels.pin(axis, reason)

    def give_up(self, value: Tensor | Parameter, shape: tuple[int, ...]) -> Tensor:
        """Nothing that reaches this operation may move; the labels of its result, of this shape."""
        reason = f"{self.operation} is not known to keep channels apart"
        self.hold(value, reason)
        return self.fixed(shape, reason)


def _broadcast_where_it_varies(still: Tensor, moving: Tensor) -> bool:
    """Whether an operand that does not move is the same for all channels of the one that moves."""
    if bool((still == UNIFORM).all()):
        return True
    sizes = [1] * (moving.dim() - still.dim()) + list(still.shape)
    return all(sizes[dim - moving.dim()] == 1 or not varies(moving, dim) for dim in range(moving.dim()))
