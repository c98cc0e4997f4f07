"""Channel permutation without an example input, as apex's callers expect it, and of copies that a script keeps of its weights."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from mpx.compat.amp.casting import HALVES, cast
from mpx.compat.asp.before_amp import before_amp, masters
from mpx.compat.asp.eligible import Place
from mpx.compat.asp.guessing import guess
from mpx.errors import UserError
from mpx.sparsity.layers import Weight
from mpx.sparsity.permutation import Permutation, Report, permute_model
from mpx.sparsity.permutation.apply import apply_beside, stays_behind

WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
WRAPPED = "module."  # what names begin with in their state_dict


def permute(model: nn.Module, places: list[Place], optimizers: list[torch.optim.Optimizer], example: Any) -> Report:
    """Reorder the channels of `model` in place so that m4n2_1d keeps more; its function stays. The report's reason says why not.

    example: a tensor, or a tuple of positional arguments, on the model's device; None: guessed. optimizers: their state moves along.
    """
    model = unwrapped(model)
    with before_amp(model) as initialised:
        tensors, beside = model.state_dict(keep_vars=True), masters(model)
        held = {id(tensor) for tensor in tensors.values()}
        if any(id(place.parameter) not in held for place in places):
            return Report(reason="the model's state_dict gives copies of its weights")
        if (left_behind := stays_behind(tensors, optimizers) or stays_behind(beside, optimizers)) is not None:
            return Report(reason=left_behind)
        if example is None and (example := guess(model)) is None:
            return Report(reason="no example input guessed from its first layer runs; pass example_input=")
        example = cast(example, torch.float32, HALVES) if initialised else example
        weights = [Weight(place.name, type(place.owner).__name__, place.parameter, None, place.layer) for place in places]
        report = permute_model(model, example, weights=weights, optimizer=optimizers)
    report.permutation.apply(beside)
    for name, master in beside.items():
        apply_beside(report.permutation, name, master, optimizers)
    return report


def in_words(report: Report) -> str:
    """One line: how many weights have their input channels in another order, and for the first of the others why not."""
    moved = [layer for layer in report.layers if layer.permuted]
    rest = [layer for layer in report.layers if not layer.permuted]
    why = f" ({rest[0].name}: {rest[0].reason})" if rest else ""
    if report.reason is not None or not moved:
        return f"Going on without permutation: {report.reason or 'no layer has channels that may move' + why}"
    others = f"; not of the other {len(rest)}{why}" if rest else ""
    kept = f"2:4 keeps {100 * report.kept_before:.2f}% -> {100 * report.kept_after:.2f}% of the magnitude"
    return f"Permuted the channels of the model: the inputs of {len(moved)} of {len(report.layers)} weights{others}. {kept}"


def permute_copy(permutation: Permutation, copy: nn.Module | Mapping[str, Tensor]) -> None:
    """Reorder a copy of the model's weights as the model was: a module, or tensors by their names in its state_dict. In place.

    Raises UserError, before anything is changed, where it has none of the names or another shape.
    """
    tensors = tensors_of(copy)
    moved = {axis: tensors[axis.name] for axis in permutation.indices if axis.name in tensors}
    if permutation.indices and not moved:
        example = next(iter(permutation.indices)).name
        raise UserError(f"ASP.permute_copies: this {type(copy).__name__} has none of the model's weights, such as {example}.")
    for axis, tensor in moved.items():
        if tensor.dim() <= axis.dim or tensor.shape[axis.dim] != len(permutation.indices[axis]):
            raise UserError(f"ASP.permute_copies: {axis.name} has shape {tuple(tensor.shape)}, which is not the model's.")
    permutation.apply(tensors)


def tensors_of(copy: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By their names in the model, without the prefix of a wrapper."""
    if isinstance(copy, nn.Module):
        return dict(chain(unwrapped(copy).named_parameters(), unwrapped(copy).named_buffers()))
    tensors = {name: tensor for name, tensor in copy.items() if name != "n_averaged"}
    prefix = WRAPPED if all(name.startswith(WRAPPED) for name in tensors) else ""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in DataParallel, DistributedDataParallel or an average of it."""
    while isinstance(model, WRAPPERS):
        model = model.module
    return model
