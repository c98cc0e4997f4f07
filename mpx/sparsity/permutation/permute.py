"""permute_model: find the groups of channels, search their orders, apply and check them."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mpx.sparsity.layers import Rules, Weight
from mpx.sparsity.layers import weights as all_weights
from mpx.sparsity.patterns import NofM, kept_magnitude, mask_2of4
from mpx.sparsity.permutation.apply import Permutation, apply_checked, stays_behind
from mpx.sparsity.permutation.channels import Axis, Group
from mpx.sparsity.permutation.graph import find_groups, first_names
from mpx.sparsity.permutation.search import GROUP, WORK, Share, rows_of, search, shares
from mpx.sparsity.permutation.trace import CannotTrace, Example, calls
from mpx.system.printing import track
from mpx.system.processes import evaluating


@dataclass
class Report:
    """The outcome for one model. `permutation.apply` reorders anything else with the model's names, such as
    moving averages.

    layers: for each weight that will be pruned `name`, `type`, `shape`, `kept_before` and `kept_after` (share
    of Σ|w| that 2:4 keeps, 0 to 1), `permuted` (whether its input channels were reordered), and `reason` (why
    they were not).
    """

    layers: list[dict[str, Any]]
    permutation: Permutation
    kept_before: float  # share of Σ|w| over all layers to be pruned, 0 to 1
    kept_after: float
    seconds: float
    reason: str | None  # why the whole model stays as it was; None: it could be permuted


def permute_model(
    model: nn.Module,
    example_input: Example | list[Example],
    *,
    weights: list[Weight] | None = None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    exhaustive: bool = False,
    seed: int = 0,
    work: float = WORK,
    progress: bool = False,
) -> Report:
    """Reorder a model's channels in place so that 2:4 pruning keeps more magnitude. Its outputs change by
    rounding only.

    example_input: one batch on the model's device (a tensor, the tuple of positional arguments or a
    dictionary of keyword arguments). A list holds one batch for each way to call the model. A batch of two
    samples is enough. A decoder of transformers takes `use_cache=False` in it, since torch.export does not
    know the type of its cache. exhaustive: the model is only ever called in these ways. Otherwise a parameter
    or buffer that takes no part in them leaves the model unchanged, and so does an optional argument that
    none gives.
    weights: the weights that will be pruned (`mpx.sparsity.layers.weights`); None: all weights that sparse
    Tensor Cores support. optimizer: one or several; their state is reordered with the parameters. A state of
    another shape (LBFGS, Adafactor) leaves the model unchanged. work: the search budget in nanoseconds of one
    core. The default is half a minute; small models need seconds. progress: show a bar on a terminal.

    The same model and seed give the same order. The function runs the model on `example_input` before and
    after, in both modes. If an output differs, it restores everything and the report says so. A model that
    torch.export cannot trace also stays unchanged, and the report says why. Random state, training mode and
    gradients are unchanged on return.
    """
    started = time.perf_counter()
    ways = calls(example_input)
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    pruned = _pruned(model, weights)
    before = {
        name: kept_magnitude(weight.parameter, mask_2of4(weight.parameter)) for name, weight in pruned.items()
    }

    def refused(reason: str) -> Report:
        return _report(pruned, before, Permutation(), dict.fromkeys(pruned, reason), started, reason)

    if (reason := stays_behind(model.state_dict(keep_vars=True), optimizers)) is not None:
        return refused(reason)
    with evaluating(model):
        try:
            groups, reasons = find_groups(model, ways, exhaustive=exhaustive)
        except CannotTrace as error:
            return refused(str(error))
        permutation, left_out = _search(groups, reasons, pruned, seed, work, progress)
        if (reason := apply_checked(permutation, model, ways, optimizers)) is not None:
            return refused(reason)
    why = {name: left_out.get(name) or _why(name, reasons) for name in pruned}
    return _report(pruned, before, permutation, why, started, None)


def _pruned(model: nn.Module, weights: list[Weight] | None) -> dict[str, Weight]:
    """The weights to prune that have whole stripes, by their first name in the state_dict, which is also
    their name in the graph.
    """
    first = first_names(model)
    weights = all_weights(model, NofM(2, 4), Rules()) if weights is None else weights
    whole = [weight for weight in weights if weight.reason is None and weight.parameter.shape[1] % GROUP == 0]
    return {first[id(weight.parameter)]: weight for weight in whole}


def _search(
    groups: list[Group],
    reasons: dict[Axis, list[str | None]],
    pruned: dict[str, Weight],
    seed: int,
    work: float,
    progress: bool,
) -> tuple[Permutation, dict[str, str]]:
    permutation = Permutation()
    left_out: dict[str, str] = {}
    sizes = {axis: len(why) for axis, why in reasons.items()}
    tensors = {name: weight.parameter.detach() for name, weight in pruned.items()}
    made = [Objective(group, tensors) for group in groups]
    for one in made:
        left_out |= one.left_out
    made = [one for one in made if one.columns]
    parts = shares([(one.rows, len(one.slots)) for one in made], work)
    shared = list(zip(made, parts, strict=True))
    for one, share in track(shared, "permuting channels", len(made)) if progress else shared:
        permutation.add(one.group, choose(one, tensors, share, seed=seed), sizes)
    return permutation, left_out


class Objective:
    """The weights for which the order of a group's channels is chosen: those of `weights` (to be pruned)
    whose columns are channels of the group.

    A weight only counts if channels of the group fill its stripes of four, in the same fours as in the other
    weights.
    """

    def __init__(self, group: Group, weights: dict[str, Tensor]):
        self.group = group
        # int64 [channels]: the channels, in the order of their columns
        self.slots = np.arange(len(next(iter(group.values()))))
        self.columns: dict[Axis, np.ndarray] = {}  # as in Group: positions of the columns of those that count
        self.rows = 0  # in total, of these weights
        self.left_out: dict[str, str] = {}  # weight name -> why it does not count
        for axis, places in group.items():
            if axis.dim != 1 or axis.name not in weights:
                continue
            slots = self.slots if self.columns else np.argsort(places[:, 0])
            if reason := _misfit(places, slots):
                self.left_out[axis.name] = reason
            elif not (own := _columns(weights[axis.name], axis, places)).isfinite().all():
                self.left_out[axis.name] = "it holds an infinity or NaN"
            else:
                self.slots, self.columns[axis] = slots, places
                self.rows += len(own)


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


def _why(name: str, reasons: dict[Axis, list[str | None]]) -> str:
    """The most frequent reason why columns of this weight stay."""
    columns = Counter(
        why for axis, column in reasons.items() if axis.name == name and axis.dim == 1 for why in column
    )
    if not columns:
        return "it takes no part in the forward pass, or is not used by a layer"
    ((why, _),) = columns.most_common(1)
    return "the search found no order that keeps more" if why is None else f"its input channels stay: {why}"


def _report(
    pruned: dict[str, Weight],
    before: dict[str, float],
    permutation: Permutation,
    why: dict[str, str],
    started: float,
    reason: str | None,
) -> Report:
    after = {
        name: kept_magnitude(weight.parameter, mask_2of4(weight.parameter)) for name, weight in pruned.items()
    }
    layers = [
        {
            "name": weight.name,
            "type": weight.type,
            "shape": list(weight.parameter.shape),
            "kept_before": before[name],
            "kept_after": after[name],
            "permuted": permutation.moves(name, 1),
            "reason": None if permutation.moves(name, 1) else why[name],
        }
        for name, weight in pruned.items()
    ]
    total = {
        name: float(weight.parameter.detach().abs().sum(dtype=torch.float64))
        for name, weight in pruned.items()
    }
    everything = sum(total.values()) or 1.0
    return Report(
        layers=layers,
        permutation=permutation,
        kept_before=sum(before[name] * total[name] for name in pruned) / everything,
        kept_after=sum(after[name] * total[name] for name in pruned) / everything,
        seconds=time.perf_counter() - started,
        reason=reason,
    )
