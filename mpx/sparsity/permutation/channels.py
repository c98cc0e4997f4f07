"""Channels: which positions of which parameters are one channel, and which channels may change places.

Every position along a parameter's dimension is an atom and has its own number. The walk through the graph
(graph.py) labels each element of an activation with the atom that it moves with, and records three kinds of
facts:

    tie   these atoms are one channel: a residual add ties the outputs of two convolutions
    pin   this channel must stay where it is: it reaches the model's output
    tag   only channels with the same tags may change places: those of one attention head, of one group

Two channels may change places if neither is pinned and both occur in the same parameters, equally often and
with the same tags. Positions with the same tags are then exchanged.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

# A label above zero is an atom. A label below zero does not move; it is −1 − the number of the reason.
UNIFORM = 0  # the label of a value that is the same everywhere, such as zeros, and so may move with anything


@dataclass(frozen=True)
class Axis:
    """One dimension of a parameter or buffer. `rows` limits it to a block of rows: one group of a grouped
    convolution.
    """

    name: str  # its key in the model's state_dict
    dim: int
    rows: tuple[int, int] | None = None

    def crosses(self, other: "Axis") -> bool:
        """Whether both have values in common, although their blocks of rows differ."""
        if (self.name, self.dim) != (other.name, other.dim) or self.rows == other.rows:
            return False
        return (
            self.rows is None
            or other.rows is None
            or max(self.rows[0], other.rows[0]) < min(self.rows[1], other.rows[1])
        )


# Channels that may change places with one another: where they are on each axis, int64 [channels, occurrences]
Group = dict[Axis, np.ndarray]


class Channels:
    """The facts about one model; `solve` derives the groups from them."""

    def __init__(self) -> None:
        self.axes: dict[Axis, Tensor] = {}
        self._atoms = 1
        self._reasons: list[str] = []
        self._ties: list[Tensor] = []
        self._pins: list[tuple[Tensor, int]] = []
        self._tags: list[tuple[Tensor, Tensor]] = []

    def axis(self, axis: Axis, size: int) -> Tensor:
        """The atoms of an axis, int64 [size]."""
        if axis not in self.axes:
            self.axes[axis] = torch.arange(self._atoms, self._atoms + size)
            self._atoms += size
            for other in [one for one in self.axes if axis.crosses(one)]:
                for both in (axis, other):
                    self.pin(self.axes[both], f"{axis.name} is used by convolutions with different groups")
        return self.axes[axis]

    def fixed(self, reason: str) -> int:
        """A label for values that do not move."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        return -1 - self._reasons.index(reason)

    def tie(self, one: Tensor, other: Tensor) -> None:
        """Element by element, these are the same channel (shapes broadcast). A channel tied to a fixed value
        is pinned for its reason.
        """
        one, other = compact(*torch.broadcast_tensors(one, other))
        low, high = _unique_pairs(torch.minimum(one, other), torch.maximum(one, other))
        self._ties.append(torch.stack([low, high])[:, (low > 0) & (low < high)])
        for label in low[low < 0].unique().tolist():
            self._pins.append((high[low == label], -1 - label))

    def pin(self, labels: Tensor, reason: str) -> None:
        """These channels stay where they are."""
        (labels,) = compact(labels)
        self._pins.append((labels[labels > 0].unique(), -1 - self.fixed(reason)))

    def tag(self, labels: Tensor, by: Tensor | None = None) -> None:
        """Add a tag: these channels change places only with one another, and only if `by` (broadcast over
        labels) is equal.
        """
        by = torch.zeros((), dtype=torch.int64) if by is None else by
        labels, by = compact(*torch.broadcast_tensors(labels, by))
        by, atoms = _unique_pairs(by, labels)
        self._tags.append((atoms, by))

    def solve(self) -> tuple[list[Group], dict[Axis, list[str | None]]]:
        """The groups of at least two channels, and per axis and position the reason why it cannot move (None:
        it can).
        """
        channel = self._channels()  # [atoms]: the channel of each atom
        reason = self._pinned(channel)  # [channels]
        role = self._roles()
        signature = self._signatures(channel, role)
        free = np.flatnonzero((reason < 0) & (signature != 0))
        _, number = np.unique(signature[free], return_inverse=True)
        group = np.full(len(reason), -1)
        group[free] = np.where(np.bincount(number)[number] > 1, number, -1)
        return self._groups(channel, role, group), self._why(channel, reason, group)

    def _channels(self) -> np.ndarray:
        one, other = torch.cat([*self._ties, torch.zeros(2, 0, dtype=torch.int64)], dim=1).numpy()
        links = coo_matrix((np.ones(len(one), dtype=bool), (one, other)), shape=(self._atoms, self._atoms))
        return connected_components(links, directed=False)[1]

    def _pinned(self, channel: np.ndarray) -> np.ndarray:
        reason = np.full(channel.max() + 1, -1)
        for atoms, number in reversed(self._pins):  # the first reason stays
            reason[channel[atoms.numpy()]] = number
        return reason

    def _roles(self) -> np.ndarray:
        """A number per atom, equal for the same tags: the sum of 64-bit hashes."""
        role = np.zeros(self._atoms, dtype=np.uint64)
        for number, (atoms, by) in enumerate(self._tags):
            np.add.at(role, atoms.numpy(), _hash(np.uint64(number), by.numpy().astype(np.uint64)))
        return role

    def _signatures(self, channel: np.ndarray, role: np.ndarray) -> np.ndarray:
        """A number per channel, equal for channels that occur in the same axes, equally often and in the same
        roles.
        """
        signature = np.zeros(channel.max() + 1, dtype=np.uint64)
        for number, atoms in enumerate(self.axes.values()):
            np.add.at(signature, channel[atoms.numpy()], _hash(np.uint64(number), role[atoms.numpy()]))
        return signature

    def _groups(self, channel: np.ndarray, role: np.ndarray, group: np.ndarray) -> list[Group]:
        groups: list[Group] = [{} for _ in range(group.max(initial=-1) + 1)]
        for axis, atoms in self.axes.items():
            own, roles = channel[atoms.numpy()], role[atoms.numpy()]
            for number in np.unique(group[own]):
                if number >= 0:
                    positions = np.flatnonzero(group[own] == number)
                    by_channel = positions[np.lexsort((positions, roles[positions], own[positions]))]
                    groups[number][axis] = by_channel.reshape((group == number).sum(), -1)
        return [found for found in groups if found]

    def _why(
        self, channel: np.ndarray, reason: np.ndarray, group: np.ndarray
    ) -> dict[Axis, list[str | None]]:
        def why(one: int) -> str | None:
            if group[one] >= 0:
                return None
            return self._reasons[reason[one]] if reason[one] >= 0 else "no other channel has the same role"

        return {axis: [why(one) for one in channel[atoms.numpy()]] for axis, atoms in self.axes.items()}


def compact(*labels: Tensor) -> list[Tensor]:
    """Tensors of one shape without the repetition that `expand` made in all of them."""
    for dim in range(labels[0].dim()):
        if all(one.stride(dim) == 0 for one in labels) and labels[0].shape[dim] > 1:
            labels = tuple(one.narrow(dim, 0, 1) for one in labels)
    return list(labels)


def varies(labels: Tensor, dim: int) -> bool:
    """Whether elements that differ only in `dim` move with different channels."""
    (labels,) = compact(labels)
    moves = labels.clamp(min=-1)
    return bool((moves != moves.narrow(dim, 0, 1)).any())


def moving_dims(labels: Tensor) -> tuple[int, ...]:
    """The dimensions along which labels vary, from the last: (-2,) for the rows of a matrix."""
    return tuple(dim for dim in range(-labels.dim(), 0) if varies(labels, dim))


def _unique_pairs(first: Tensor, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct pairs (first, atom) whose atom is above zero. Both are packed into one int64, since
    sorting pairs is slow.
    """
    packed = (first * 2**40 + atoms)[atoms > 0].unique()
    return packed >> 40, packed & (2**40 - 1)


def _hash(number: np.uint64, by: np.ndarray) -> np.ndarray:
    """SplitMix64 of a pair; sums wrap around."""
    with np.errstate(over="ignore"):
        value = (
            number * np.uint64(0x9E3779B97F4A7C15)
            + by * np.uint64(0xD1B54A32D192ED03)
            + np.uint64(0x8CB92BA72F3D8DD7)
        )
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
