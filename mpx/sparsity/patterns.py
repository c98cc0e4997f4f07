"""Patterns: which values of a weight stay. What every pattern can be asked, and N of M along the inputs, of which 2of4 is one.

All patterns choose by absolute magnitude, in FP32, FP16 or BF16 as the weight is, whatever its memory layout. Among equal magnitudes
the earlier position stays, so a mask depends on the values alone and not on the device. An infinite or NaN weight ranks above every
finite one, so that no mask hides it and no mask keeps more than its pattern; among such weights as well the earlier stays.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpx.machine import builds_kernels
from mpx.private.torch_kernels import has_triton

PAIRWISE = 8  # groups of up to so many are ranked by comparing pairs, larger ones by sorting


class Pattern(ABC):
    """What to keep of a weight [out, in, ...]: Linear [out, in], Conv [out, in/groups, k...], LSTM [4·hidden, in]."""

    name: str
    backend = "mpx"  # who chooses the masks

    @abstractmethod
    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        """One bool tensor per weight, True where it stays, in the weight's shape and memory layout.

        compiled: through torch.compile, where the pattern gains from it: for masks that are computed again at every step.
        """

    @abstractmethod
    def holds(self, weight: Tensor) -> Tensor:
        """Whether the weight has the pattern: a bool on its device, so that asking for many weights waits for the device once."""

    @abstractmethod
    def misfit(self, shape: Sequence[int]) -> str | None:
        """Why a weight of this shape cannot be pruned; None: it can."""

    columns = 16  # what a sparse Tensor Core takes: inputs in multiples of this
    rows = 8  # and outputs of this

    def mask(self, weight: Tensor) -> Tensor:
        return self.masks([weight])[0]


@dataclass(frozen=True)
class NofM(Pattern):
    """Of every m neighbours along dimension 1 (the inputs; per kernel position and group of a convolution) the n largest stay.

    Where m does not divide the inputs, the last group is smaller and keeps up to n of what it has, as if zeros followed.
    2 of 4 is what sparse Tensor Cores run. Source: Mishra et al., Accelerating Sparse Deep Neural Networks, arXiv:2104.08378.
    """

    n: int
    m: int

    @property
    def name(self) -> str:
        return f"{self.n}of{self.m}"

    def masks(self, weights: Sequence[Tensor], *, compiled: bool = False) -> list[Tensor]:
        """Weights of one format are ranked together, so that a GPU starts a handful of kernels and not a handful per weight.

        compiled: by the Triton kernel of mpx.sparsity.mask_launch where that is possible, which reads the weights where they lie.
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
        """Masks by their weights' places; none of weights that the Triton kernel does not take."""
        if self.m != 4 or not all(weight.is_cuda for weight in weights) or not _triton():
            return {}
        from mpx.sparsity.mask_launch import masks_by_place  # Triton comes with PyTorch for CUDA alone

        return masks_by_place(weights, self.n)

    def holds(self, weight: Tensor) -> Tensor:
        return ((self._groups(weight) != 0).sum(-1) <= self.n).all()

    def misfit(self, shape: Sequence[int]) -> str | None:
        return f"{shape[1]} inputs, of which {self.name} keeps all" if shape[1] <= self.n else None

    def _groups(self, weight: Tensor) -> Tensor:
        """[out, in, k...] -> [out · k · in/m, m], the last group of each row filled up with zeros."""
        rows = weight.detach().movedim(1, -1)
        missing = -rows.shape[-1] % self.m
        return (pad(rows, (0, missing)) if missing else rows).reshape(-1, self.m)

    def _back(self, kept: Tensor, weight: Tensor) -> Tensor:
        out, inputs, *kernel = weight.shape
        whole = inputs + -inputs % self.m
        return laid_out_as(kept.reshape(out, *kernel, whole)[..., :inputs].movedim(-1, 1), weight)


def magnitudes(values: Tensor, beyond: float = float("inf")) -> Tensor:
    """|w|, and `beyond` where w is infinite or NaN, since NaN beats nothing and loses to nothing. Finite where magnitudes are added."""
    return values.abs().nan_to_num_(nan=beyond, posinf=beyond)


def keep_largest(values: Tensor, n: int) -> Tensor:
    """The n largest magnitudes of each row, the earlier among equals. values: [groups, m]; returns bool [groups, m]."""
    m = values.shape[1]
    if m > PAIRWISE:
        order = magnitudes(values).argsort(stable=True, dim=-1, descending=True)
        return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, order[:, :n], True)
    columns = magnitudes(values).t().contiguous().unbind()  # m × [groups]: each comparison then reads neighbours
    beaten = [torch.zeros_like(column, dtype=torch.uint8) for column in columns]  # by how many of its group
    for i in range(m):
        for j in range(i + 1, m):
            earlier = columns[i] >= columns[j]
            beaten[j] += earlier
            beaten[i] += ~earlier
    return torch.stack([times < n for times in beaten], -1)


@cache
def _compiled():
    return torch.compile(keep_largest, dynamic=True)  # one kernel: reads each value once, writes each mask once


@cache
def _triton() -> bool:
    return has_triton()


def mask_2of4(weight: Tensor) -> Tensor:
    """The 2of4 mask of one weight [out, in, ...]: bool, True where it stays. Raises ValueError for fewer than two dimensions."""
    if weight.dim() < 2:
        raise ValueError(f"2of4 needs a weight [out, in, ...], got {tuple(weight.shape)}")
    return NofM(2, 4).mask(weight)


def is_2of4(weight: Tensor) -> bool:
    """Whether every group of 4 along dimension 1 holds at most 2 non-zero values."""
    return bool(NofM(2, 4).holds(weight))


def kept_magnitude(weight: Tensor, mask: Tensor) -> float:
    """Share of Σ|w| that the mask keeps, 0 to 1; 1 for an all-zero weight."""
    magnitude = weight.detach().abs().double()
    total = magnitude.sum()
    return float((magnitude * mask).sum() / total) if total > 0 else 1.0


def laid_out_as(mask: Tensor, weight: Tensor) -> Tensor:
    """The mask in the weight's own memory layout, so that both are read in step."""
    return mask if mask.stride() == weight.stride() else torch.empty_like(weight, dtype=torch.bool).copy_(mask)


def _alike(weights: Sequence[Tensor], found: Collection[int]) -> list[list[int]]:
    """Places of the weights that share device and format, without those that were `found` already."""
    places: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for place, weight in enumerate(weights):
        if place not in found:
            places[weight.device, weight.dtype].append(place)
    return list(places.values())
