"""The objective: the pruned weights whose columns are a group's channels, and the best order for all of them
together.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mpx.sparsity.permutation.budget import GROUP, Share
from mpx.sparsity.permutation.channels import Axis, Group
from mpx.sparsity.permutation.search import rows_of, search


@dataclass
class Objective:
    """The weights for which the order of a group's channels is chosen."""

    group: Group
    slots: np.ndarray  # int64 [channels]: the channels, in the order of their columns
    # positions of the columns, as in Group, of the weights that count
    columns: dict[Axis, np.ndarray] = field(default_factory=dict)
    rows: int = 0  # in total, of these weights
    left_out: dict[str, str] = field(default_factory=dict)  # weight name -> why it does not count


def objective(group: Group, weights: dict[str, Tensor]) -> Objective:
    """The objective over all of `weights` (those to be pruned) whose columns are channels of this group.

    A weight only counts if channels of the group fill its stripes of four, in the same fours as in the other
    weights.
    """
    made = Objective(group, np.arange(len(next(iter(group.positions.values())))))
    for axis, places in group.positions.items():
        if axis.dim != 1 or axis.name not in weights:
            continue
        slots = made.slots if made.columns else np.argsort(places[:, 0])
        if reason := _misfit(places, slots):
            made.left_out[axis.name] = reason
        elif not (own := _columns(weights[axis.name], axis, places)).isfinite().all():
            made.left_out[axis.name] = "it holds an infinity or NaN"
        else:
            made.slots, made.columns[axis] = slots, places
            made.rows += len(own)
    return made


def choose(made: Objective, weights: dict[str, Tensor], share: Share, *, seed: int) -> np.ndarray:
    """The best order of the group's channels: channel i gets the values of channel order[i], as in
    Permutation.
    """
    matrix = [_columns(weights[axis.name], axis, places[made.slots]) for axis, places in made.columns.items()]
    found = search(torch.cat([one.to(matrix[0].device) for one in matrix]), share, seed=seed)
    order = np.empty_like(made.slots)
    order[made.slots] = made.slots[found.order.numpy()]
    return order


def _misfit(places: np.ndarray, slots: np.ndarray) -> str | None:
    """Why these columns do not form whole stripes in this order; None if they do. places: [channels,
    occurrences].
    """
    if len(slots) == GROUP:
        return (
            "only 4 of its input channels may change places with one another, and their order within a "
            "stripe of 4 does not matter"
        )
    if len(slots) % GROUP:
        return (
            f"only {len(slots)} of its input channels may change places with one another, not a "
            f"multiple of {GROUP}"
        )
    stripes = places[slots].reshape(-1, GROUP, places.shape[1]) // GROUP
    if (stripes == stripes[:, :1]).all():
        return None
    if places.shape[1] == 1:
        return "its input channels do not share stripes of 4 as in the layers beside it"
    neighbours = (np.diff(places, axis=1) == 1).all()
    return (
        f"each of its input channels is {places.shape[1]} {'neighbouring ' if neighbours else ''}inputs, "
        "which move together"
    ) + ("" if neighbours else " and do not fill stripes of 4 alike")


def _columns(weight: Tensor, axis: Axis, places: np.ndarray) -> Tensor:
    """[rows · occurrences, channels]: the magnitudes of a weight's columns, limited to the rows of `axis`."""
    block = rows_of(weight if axis.rows is None else weight[slice(*axis.rows)])
    return torch.cat([block[:, torch.from_numpy(one).to(weight.device)] for one in places.T]).abs().float()
