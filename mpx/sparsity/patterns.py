"""Patterns choose which values of a weight stay. This module has their interface, N:M along the inputs, with
2of4 as one case, and unstructured pruning.

All patterns rank by magnitude in the weight's own format (FP32, FP16 or BF16), independently of its memory
layout. Among equal magnitudes the earlier position stays, so a mask depends on the values only and not on the
device. Infinite and NaN weights rank above every finite weight, the earlier first, so masks do not hide them
and never keep more than the pattern allows.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpx.private.torch_kernels import has_triton
from mpx.system.machine import builds_kernels

LARGEST_PAIRWISE = 8  # groups up to this size are ranked by comparing pairs, larger groups by sorting


class Pattern(ABC):
    """Which values of a weight [out, in, ...] stay. Linear: [out, in]; Conv: [out, in/groups, k...]; LSTM:
    [4·hidden, in].
    """

    backend = "mpx"  # what chooses the masks: mpx or apex
    rows = 8  # sparse Tensor Cores take outputs in multiples of this
    columns = 16  # and inputs in multiples of this

    @property
    @abstractmethod
    def name(self) -> str:
        """As in result.json."""

    @abstractmethod
    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        """One bool tensor per weight, True where a value stays, in the weight's shape and memory layout.

        compiled: use compiled kernels if the pattern has any, for masks that are recomputed at every step.
        """

    @abstractmethod
    def holds(self, weight: Tensor) -> Tensor:
        """Whether the weight has the pattern: a bool on its device, so that a caller can check many weights
        with one wait.
        """

    @abstractmethod
    def misfit(self, shape: Sequence[int]) -> str | None:
        """Why a weight of this shape cannot be pruned; None if it can."""

    def mask(self, weight: Tensor) -> Tensor:
        return self.masks([weight])[0]


@dataclass(frozen=True)
class NofM(Pattern):
    """Keeps the n largest of every m neighbours along dimension 1: the inputs, per kernel position and group
    of a convolution.

    If m does not divide the number of inputs, the last group is smaller and keeps up to n values, as if
    padded with zeros. Sparse Tensor Cores run 2 of 4. Source: Mishra et al., Accelerating Sparse Deep Neural
    Networks, arXiv:2104.08378.
    """

    n: int
    m: int

    @property
    def name(self) -> str:
        return f"{self.n}of{self.m}"

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        """Rank all weights of one format together, so that a GPU runs a few kernels in total instead of a few
        per weight.

        compiled: use the Triton kernel of mpx.sparsity.mask_launch, which reads the weights in place, for the
        weights it supports.
        """
        compiled = compiled and builds_kernels()
        keep = _compiled() if compiled else keep_largest
        found = self._in_one_launch(weights) if compiled else {}
        for places in _alike(weights, found):
            groups = [self._groups(weights[place]) for place in places]
            kept = keep(torch.cat(groups) if len(groups) > 1 else groups[0], self.n)
            for place, piece in zip(places, kept.split([len(group) for group in groups]), strict=True):
                found[place] = self._back(piece, weights[place])
        return [found[place] for place in range(len(weights))]

    def _in_one_launch(self, weights: Sequence[Tensor]) -> dict[int, Tensor]:
        """Masks by the indices of their weights, without the weights that the Triton kernel does not
        support.
        """
        if self.m != 4 or not all(weight.is_cuda for weight in weights) or not has_triton():
            return {}
        from mpx.sparsity.mask_launch import masks_by_place  # only CUDA builds of PyTorch ship Triton

        return masks_by_place(weights, self.n)

    def holds(self, weight: Tensor) -> Tensor:
        return ((self._groups(weight) != 0).sum(-1) <= self.n).all()

    def misfit(self, shape: Sequence[int]) -> str | None:
        inputs = "1 input" if shape[1] == 1 else f"{shape[1]} inputs"
        return f"{inputs}, of which {self.name} keeps all" if shape[1] <= self.n else None

    def _groups(self, weight: Tensor) -> Tensor:
        """[out, in, k...] -> [out · k · in/m, m], the last group of each row padded with zeros."""
        rows = weight.detach().movedim(1, -1)
        missing = -rows.shape[-1] % self.m
        return (pad(rows, (0, missing)) if missing else rows).reshape(-1, self.m)

    def _back(self, kept: Tensor, weight: Tensor) -> Tensor:
        out, inputs, *kernel = weight.shape
        whole = inputs + -inputs % self.m
        return laid_out_as(kept.reshape(out, *kernel, whole)[..., :inputs].movedim(-1, 1), weight)


@dataclass(frozen=True)
class Unstructured(Pattern):
    """The largest values of a layer stay, at any position. A baseline for accuracy, since no hardware runs it
    faster.

    density: share (0 to 1) of each layer's values that stay. Values are ranked within their layer, as in the
    other patterns.

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
        return (
            f"{kept} of {size} weights would stay at density {self.density:g}" if kept in (0, size) else None
        )


def magnitudes(values: Tensor, beyond: float = float("inf")) -> Tensor:
    """|w|, and `beyond` where w is infinite or NaN, since NaN cannot be ranked. `beyond` must be finite if
    magnitudes are summed.
    """
    return values.abs().nan_to_num_(nan=beyond, posinf=beyond)


def keep_largest(values: Tensor, n: int) -> Tensor:
    """The n largest magnitudes of each row, the earlier among equals. values: [groups, m]; returns bool
    [groups, m].
    """
    m = values.shape[1]
    if m > LARGEST_PAIRWISE:
        order = magnitudes(values).argsort(stable=True, dim=-1, descending=True)
        return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, order[:, :n], True)
    # m × [groups]: each comparison then reads neighbours
    columns = magnitudes(values).t().contiguous().unbind()
    # number of group members that rank above it
    beaten = [torch.zeros_like(column, dtype=torch.uint8) for column in columns]
    for i in range(m):
        for j in range(i + 1, m):
            earlier = columns[i] >= columns[j]
            beaten[j] += earlier
            beaten[i] += ~earlier
    return torch.stack([times < n for times in beaten], -1)


def largest(values: Tensor, count: int) -> Tensor:
    """A bool tensor that marks the `count` largest magnitudes of a tensor. Of equal magnitudes the earlier
    (row by row) wins.
    """
    order = magnitudes(values.detach()).flatten().argsort(stable=True, dim=0, descending=True)
    return torch.zeros_like(order, dtype=torch.bool).index_fill_(0, order[:count], True).view(values.shape)


@cache
def _compiled():
    # one kernel: reads each value once, writes each mask once
    return torch.compile(keep_largest, dynamic=True)


def mask_2of4(weight: Tensor) -> Tensor:
    """The 2of4 mask of one weight [out, in, ...]: bool, True where a value stays."""
    return NofM(2, 4).mask(weight)


def is_2of4(weight: Tensor) -> bool:
    """Whether every group of 4 along dimension 1 holds at most 2 non-zero values."""
    return bool(NofM(2, 4).holds(weight))


def kept_magnitude(weight: Tensor, mask: Tensor) -> float:
    """Share of Σ|w| that the mask keeps, 0 to 1; 1 for an all-zero weight, NaN for one with infinities or
    NaN.
    """
    magnitude = weight.detach().abs().double()
    total = magnitude.sum()
    return float((magnitude * mask).sum() / total) if total != 0 else 1.0


def laid_out_as(mask: Tensor, weight: Tensor) -> Tensor:
    """The mask in the weight's memory layout, so that kernels read both in the same order."""
    return (
        mask if mask.stride() == weight.stride() else torch.empty_like(weight, dtype=torch.bool).copy_(mask)
    )


def _alike(weights: Sequence[Tensor], found: Collection[int]) -> list[list[int]]:
    """Indices of the weights that share a device and a format, without the indices already in `found`."""
    places: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for place, weight in enumerate(weights):
        if place not in found:
            places[weight.device, weight.dtype].append(place)
    return list(places.values())
