"""The interface between the walk and the rules for operations: labels of activations and atoms of
parameters.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import UNIFORM, Axis, Channels, compact, moving_dims, varies

BELOW_ALL = -(2**62)  # below every label


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer among an operation's arguments."""

    name: str  # its key in the model's state_dict, the first one if it is shared
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Sides:
    """A value computed from weights, whose dimensions move independently; see operations.py."""

    labels: tuple[Tensor, ...]  # at least two, each of the value's shape

    @property
    def shape(self) -> torch.Size:
        return self.labels[0].shape


Value = Tensor | Parameter | Sides


@dataclass
class Walk:
    """The state of one walk, and the functions that the rules are written with."""

    channels: Channels = field(default_factory=Channels)
    operation: str = ""  # the current one, for the reasons

    @property
    def unknown(self) -> str:
        """Why channels stay that reach the current operation in a way that no rule knows."""
        return f"{self.operation} is not known to keep channels apart"

    def labels(self, value: Value) -> Tensor:
        """The labels of an activation. Of a parameter, the last dimension of more than one value counts as
        the channels.
        """
        *others, last = self.sides(value)
        for side in others:
            self.channels.pin(side, self.unknown)
        return last

    def sides(self, value: Value) -> tuple[Tensor, ...]:
        """One tensor of labels for each dimension that moves independently; an activation has one."""
        if not isinstance(value, Parameter):
            return value.labels if isinstance(value, Sides) else (value,)
        wide = [dim for dim, size in enumerate(value.shape) if size > 1]
        found = tuple(self.spread(self.axis(value, dim), dim, value.shape) for dim in wide)
        return found or (self.uniform(value.shape),)

    def axis(self, value: Value, dim: int, rows: tuple[int, int] | None = None) -> Tensor:
        """int64 [size]: the atoms of a parameter's dimension, or the labels along a computed value's
        dimension.
        """
        if isinstance(value, Parameter):
            return self.channels.axis(Axis(value.name, dim, rows), value.shape[dim])
        own = [side for side in self.sides(value) if varies(side, dim)]
        if len(own) == 1:
            return self.along(own[0] if rows is None else own[0][slice(*rows)], dim)
        reason = f"the weight of {self.operation} is computed"
        for side in own:
            self.hold(side, reason)
        return self.fixed(value.shape[dim : dim + 1], reason)

    def matrix(self, value: Value) -> Value:
        """A layer's weight. If it is computed, only its rows and columns may move."""
        for side in () if isinstance(value, Parameter) else self.sides(value):
            if not set(moving_dims(side)) <= {-side.dim(), 1 - side.dim()}:
                self.hold(side, f"the weight of {self.operation} is computed")
        return value

    def tie(self, one: Tensor, other: Tensor) -> None:
        self.channels.tie(one, other)

    def tag(self, labels: Tensor, by: Tensor | None = None) -> None:
        self.channels.tag(labels, by)

    def tag_rows(self, labels: Tensor, dims: tuple[int, ...]) -> None:
        """For an operation that joins the elements along `dims`: channels may change places within a row, not
        between rows.
        """
        dims = tuple(dim % labels.dim() for dim in dims)
        rest = [
            1 if dim in dims or not varies(labels, dim) else size for dim, size in enumerate(labels.shape)
        ]
        number = torch.arange(int(torch.tensor(rest).prod())).view(rest)
        self.tag(labels, number)

    def join(self, labels: Tensor, dims: tuple[int, ...]) -> None:
        """As `tag_rows`, but whole rows may change places, since the operation treats all rows alike."""
        if any(varies(labels, dim) for dim in dims):
            self.tag_rows(labels, dims)

    def along(self, labels: Tensor, dim: int) -> Tensor:
        """The labels along one dimension, int64 [size]. Elements that differ only in other dimensions are
        tied.
        """
        dim %= labels.dim()
        if any(varies(labels, other) for other in range(labels.dim()) if other != dim):
            if not varies(labels, dim):
                return self.give_up(labels.shape[dim : dim + 1], labels)
            (labels,) = compact(labels)
            # prefer atoms to fixed labels, and these to UNIFORM
            most = torch.where(labels == UNIFORM, BELOW_ALL, labels)
            most = most.movedim(dim, 0).flatten(1).amax(1)
            most = torch.where(most == BELOW_ALL, UNIFORM, most)
            self.tie(labels, most.view([-1 if one == dim else 1 for one in range(labels.dim())]))
            return most
        return labels.movedim(dim, 0).reshape(labels.shape[dim], -1)[:, 0]

    def spread(self, atoms: Tensor, dim: int, shape: tuple[int, ...]) -> Tensor:
        """Labels of this shape that equal `atoms` along `dim`."""
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

    def hold(self, value: Value, reason: str) -> None:
        """Pin all its channels."""
        axes = (
            [self.axis(value, dim) for dim in range(len(value.shape))]
            if isinstance(value, Parameter)
            else self.sides(value)
        )
        for axis in axes:
            self.channels.pin(axis, reason)

    def give_up(self, shape: tuple[int, ...], *values: Value) -> Tensor:
        """Pin all channels that reach this operation by these values. Returns the labels of its result, of
        this shape.
        """
        for value in values:
            self.hold(value, self.unknown)
        return self.fixed(shape, self.unknown)


def _broadcast_where_it_varies(still: Tensor, moving: Tensor) -> bool:
    """Whether the operand `still` is the same for all channels of `moving`."""
    if bool((still == UNIFORM).all()):
        return True
    sizes = [1] * (moving.dim() - still.dim()) + list(still.shape)
    return all(sizes[dim - moving.dim()] == 1 or not varies(moving, dim) for dim in range(moving.dim()))
