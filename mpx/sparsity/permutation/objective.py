"""The objective: which pruned weights a group of channels forms the columns of, and the best order for all of them together."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import Axis, Group
from mpx.sparsity.permutation.search import GROUP, kept, rows_of, search


@dataclass
class Choice:
    """The order found for a group, and the weights that had no say in it."""

    order: np.ndarray  # int64 [channels]: channel i takes over the values of channel order[i], see Permutation
    left_out: dict[str, str]  # weight name -> why


def choose(group: Group, weights: dict[str, Tensor], *, seed: int, work: float) -> Choice:
    """The order of a group's channels that keeps most magnitude over all of `weights` (those to be pruned) whose columns they are.

    Columns count where four channels of the group fill a stripe, in the same fours in every weight.
    """
    channels = len(next(iter(group.positions.values())))
    order, left_out = np.arange(channels), {}
    columns = {axis: places for axis, places in group.positions.items() if axis.dim == 1 and axis.name in weights}
    slots, matrix = None, []
    for axis, places in columns.items():
        own = np.argsort(places[:, 0]) if slots is None else slots
        if reason := _misfit(places, own):
            left_out[axis.name] = reason
        elif not (own_columns := _columns(weights[axis.name], axis, places[own])).isfinite().all():
            left_out[axis.name] = "it holds an infinity or NaN"
        else:
            slots = own
            matrix.append(own_columns)
    if matrix:
        found = search(torch.cat([one.to(matrix[0].device) for one in matrix]), seed=seed, work=work)
        order[slots] = slots[found.order.numpy()]
    return Choice(order, left_out)


def share_kept(weight: Tensor) -> float:
    """Share of Σ|w| that 2:4 keeps of a weight [out, in, ...], 0 to 1; 1 for an all-zero weight."""
    columns = rows_of(weight).abs().t().float()
    total = float(columns.sum(dtype=torch.float64))
    return kept(columns) / total if total > 0 else 1.0


def _misfit(places: np.ndarray, slots: np.ndarray) -> str | None:
    """Why these columns are not whole stripes in this order; None: they are. places: [channels, occurrences]."""
    if len(slots) == GROUP:
        return "only 4 of its input channels may change places with one another, and their order within a stripe of 4 does not matter"
    if len(slots) % GROUP:
        return f"only {len(slots)} of its input channels may change places with one another, not a multiple of {GROUP}"
    stripes = places[slots].reshape(-1, GROUP, places.shape[1]) // GROUP
    if (stripes == stripes[:, :1]).all():
        return None
    if places.shape[1] == 1:
        return "its input channels do not share stripes of 4 as in the layers beside it"
    neighbours = (np.diff(places, axis=1) == 1).all()
    return f"each of its input channels is {places.shape[1]} {'neighbouring ' if neighbours else ''}inputs, which move together" + (
        "" if neighbours else " and do not fill stripes of 4 alike"
    )


def _columns(weight: Tensor, axis: Axis, places: np.ndarray) -> Tensor:
    """[rows · occurrences, channels]: the magnitudes of a weight's columns, of one group of a grouped convolution only its rows."""
    block = rows_of(weight if axis.rows is None else weight[slice(*axis.rows)])
    return torch.cat([block[:, torch.from_numpy(one).to(weight.device)] for one in places.T]).abs().float()
