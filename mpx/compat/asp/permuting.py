"""Channel permutation for apex's callers, who pass no example input, and for a script's copies of its weights."""

from collections.abc import Callable, Mapping, Set
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compat.amp.casting import HALVES, cast
from mpx.compat.asp.before_amp import before_amp, masters
from mpx.compat.asp.eligible import Place
from mpx.compat.asp.guessing import guess
from mpx.errors import UserError
from mpx.private.torch_dispatch import tree_leaves
from mpx.sparsity.layers import Weight
from mpx.sparsity.permutation import Permutation, Report, permute_model
from mpx.sparsity.permutation.apply import apply_beside, stays_behind

WRAPPERS = nn.DataParallel | nn.parallel.DistributedDataParallel
WRAPPED = "module."  # prefix of the names in the state_dict of a wrapper or an average


def permute(
    model: nn.Module,
    places: list[Place],
    optimizers: list[torch.optim.Optimizer],
    example: Any,
    say: Callable[[int, str], None],
    *,
    progress: bool,
) -> Report:
    """Reorder the channels of `model` in place so that m4n2_1d keeps more magnitude, without changing its function. The report's reason
    says why nothing was reordered.

    example: as permute_model's, on the model's device; None: guessed. optimizers: their state is reordered too.
    say(level, text): prints if the verbosity is at least `level`.
    """
    model = unwrapped(model)
    with before_amp(model) as initialised:
        beside = masters(model)
        held = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        if any(id(place.parameter) not in held for place in places):
            return Report(reason="the model's state_dict gives copies of its weights")
        if (left_behind := stays_behind(beside, optimizers)) is not None:
            return Report(reason=left_behind)
        if example is None:
            if (example := guess(model)) is None:
                return Report(reason="no example input guessed from its first layers runs; pass example_input=")
            say(2, f"Example input guessed for the permutation: {' and '.join(str(tuple(one.shape)) for one in tree_leaves(example))}")
        example = cast(example, torch.float32, HALVES) if initialised else example
        weights = [Weight(place.name, type(place.owner).__name__, place.parameter, None, place.layer) for place in places]
        report = permute_model(model, example, weights=weights, optimizer=optimizers, progress=progress)
    report.permutation.apply(beside)
    for name, master in beside.items():
        apply_beside(report.permutation, name, master, optimizers)
    return report


def summary(report: Report) -> str:
    """One line: how many weights have reordered inputs, and why the first of the others does not."""
    moved = [layer for layer in report.layers if layer.permuted]
    rest = [layer for layer in report.layers if not layer.permuted]
    if report.reason is not None or not moved:
        why = f" ({rest[0].name}: {rest[0].reason})" if rest else ""
        return f"Going on without permutation: {report.reason or 'no layer has channels that may move' + why}"
    others = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
    stays = f"; not of {rest[0].name}{others} ({rest[0].reason})" if rest else ""
    kept = f"2:4 keeps {100 * report.kept_before:.2f}% -> {100 * report.kept_after:.2f}% of the magnitude"
    return f"Permuted the channels of the model: the inputs of {len(moved)} of {len(report.layers)} weights{stays}. {kept}"


def permute_copy(permutation: Permutation, copy: nn.Module | Mapping[str, Tensor]) -> None:
    """Apply the model's permutation, in place, to a copy of its weights: a module, or tensors by their names in its state_dict.

    Raises UserError, before any change, if the copy has none of the names or another shape.
    """
    given = dict(chain(copy.named_parameters(), copy.named_buffers())) if isinstance(copy, nn.Module) else copy
    tensors = _by_own_names(given, {axis.name for axis in permutation.indices})
    for axis, index in permutation.indices.items():
        shape = tensors[axis.name].shape if axis.name in tensors else None
        if shape is not None and (len(shape) <= axis.dim or shape[axis.dim] != len(index)):
            raise UserError(f"ASP.permute_copies: {axis.name} has shape {tuple(shape)}, which is not the model's.")
    if permutation.indices and not tensors:
        raise UserError(f"ASP.permute_copies: this {type(copy).__name__} has none of the weights that the permutation moved.")
    permutation.apply(tensors)


def _by_own_names(tensors: Mapping[str, Tensor], names: Set[str]) -> Mapping[str, Tensor]:
    """The tensors without the name prefix of averages and parallel wrappers; empty if they have none of `names`."""
    while tensors and not names & tensors.keys():
        tensors = {name.removeprefix(WRAPPED): tensor for name, tensor in tensors.items() if name.startswith(WRAPPED)}
    return tensors


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DataParallel or DistributedDataParallel."""
    return model.module if isinstance(model, WRAPPERS) else model
