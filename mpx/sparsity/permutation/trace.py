"""Traces: torch.export's graphs of a model, one for each way to call it and each mode (evaluation,
training).

A parameter or buffer that no trace uses may act on any tensor in another call, and so may an argument of
`forward` with a default that no example gives. So a model with one is refused, unless the caller says that
there are no other calls. Optional arguments of KNOWN libraries pass, since they are masks, positions, labels
and caches.
"""

import inspect
import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

# one batch: a tensor, the positional arguments, or the keyword arguments
Example = Tensor | tuple | Mapping[str, Any]
KNOWN = ("torch", "torchvision", "timm", "transformers")


class CannotTrace(Exception):
    """Not all that the model does is known, so it stays as it is. The text says why in one line."""


@dataclass(frozen=True)
class Call:
    """One way to call a model."""

    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)


def calls(example: Example | list[Example]) -> list[Call]:
    """One call for each example; a list holds several."""
    if isinstance(example, list):
        return [call for one in example for call in calls(one)]
    if isinstance(example, Mapping):
        return [Call(kwargs=dict(example))]
    return [Call(example if isinstance(example, tuple) else (example,))]


def trace(model: nn.Module, ways: list[Call]) -> list[ExportedProgram]:
    """The graph of every call in both modes; the model is in evaluation mode before and after. Raises
    CannotTrace.
    """
    programs = [_export(model, call, "") for call in ways]
    with training(model) as woken:
        return programs + [_export(model, call, " in training mode") for call in ways if woken]


@contextmanager
def training(model: nn.Module) -> Iterator[list[nn.Module]]:
    """A context in which the layers are in training mode, and yields them. The model is in evaluation mode
    before and after.

    torch's own layers stay in evaluation mode: they treat channels alike in both modes, and dropout would be
    random.
    """
    woken = [layer for layer in model.modules() if not type(layer).__module__.startswith("torch.nn.modules.")]
    for layer in woken:
        layer.training = True
    try:
        yield woken
    finally:
        for layer in woken:
            layer.training = False


def _export(model: nn.Module, call: Call, mode: str) -> ExportedProgram:
    with warnings.catch_warnings(), torch.enable_grad(), redirect_stderr(io.StringIO()):
        # torch.export warns about nn.LSTM's attributes and prints the graph if it fails. With gradients on,
        # attention is one operation.
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(model, call.args, call.kwargs, strict=False)
        except Exception as error:  # any of many: branches on data, unsupported types, the model's own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CannotTrace(f"torch.export cannot trace this model{mode}: {reason}") from error


def refuse_other_calls(model: nn.Module, ways: list[Call], used: set[int]) -> None:
    """Raise CannotTrace if another call could act on tensors in ways that no trace shows. used: the ids of
    the parameters and buffers that the traces use.
    """
    kept = {id(tensor) for tensor in model.state_dict(keep_vars=True).values() if tensor.is_floating_point()}
    unseen = [
        f"{name} takes no part in the passes on example_input"
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if id(tensor) in kept - used
    ]
    if missing := _not_given(model, ways):
        unseen.append(f"forward takes {missing}, which example_input lacks")
    if unseen:
        raise CannotTrace(
            f"{unseen[0]}: give a list with an example that has it, or exhaustive=True if no other call does"
        )


def _not_given(model: nn.Module, ways: list[Call]) -> str | None:
    """The first argument of forward with a default that every call leaves out; None for KNOWN libraries."""
    forward = type(model).forward
    if forward.__module__.partition(".")[0] in KNOWN:
        return None
    signature = inspect.signature(forward)
    given = {name for call in ways for name in signature.bind(model, *call.args, **call.kwargs).arguments}
    with_default = (one.name for one in signature.parameters.values() if one.default is not one.empty)
    return next((name for name in with_default if name not in given), None)
