"""Traces: torch.export's graphs of a model, one for each way to call it and each mode (evaluation,
training); and the modules whose own code may act on tensors in ways that no trace shows.

A tensor is in a module's own code if the module takes it, returns it, or computes with it outside its
children. A parameter that no trace uses can only act in the own code of the module that holds it, or of a
module around that one. So the channels of the tensors there stay. It cannot reach the tensors inside the
children.

The same holds for an argument of `forward` that has a default and that no example gives: the channels stay in
all modules with such arguments. Models of KNOWN libraries are exempt, since their optional arguments are
masks, positions, labels and caches.
"""

import inspect
import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from mpx.private.torch_dispatch import tree_map_only

# one batch: a tensor, the positional arguments, or the keyword arguments
Example = Tensor | tuple | Mapping[str, Any]
KNOWN = ("torch", "torchvision", "timm", "transformers")


class CannotTrace(Exception):
    """torch.export cannot trace this model. The text says why in one line."""


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


def trace(model: nn.Module, ways: list[Call], *, marked: bool = False) -> list[ExportedProgram]:
    """The graph of every call in both modes; the model is in evaluation mode before and after. Raises
    CannotTrace.

    marked: every tensor that enters or leaves a module passes through an `alias` operation, even if nothing
    uses it.
    """
    programs = [_export(model, call, marked, "") for call in ways]
    with training(model) as woken:
        return programs + [_export(model, call, marked, " in training mode") for call in ways if woken]


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


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """A context in which transformers' models return no cache of keys and values, whose type torch.export
    does not know.
    """
    every = [getattr(layer, "config", None) for layer in model.modules()]
    configs: dict[int, Any] = {id(config): config for config in every if getattr(config, "use_cache", False)}
    for config in configs.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs.values():
            config.use_cache = True


def _export(model: nn.Module, call: Call, marked: bool, mode: str) -> ExportedProgram:
    with (
        warnings.catch_warnings(),
        torch.enable_grad(),
        redirect_stderr(io.StringIO()),
        _marks(model if marked else None),
    ):
        # torch.export warns about nn.LSTM's attributes and prints the graph if it fails. With gradients on,
        # attention is one operation.
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(model, call.args, call.kwargs, strict=False)
        except Exception as error:  # any of many: branches on data, unsupported types, the model's own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CannotTrace(f"torch.export cannot trace this model{mode}: {reason}") from error


@contextmanager
def _marks(model: nn.Module | None) -> Iterator[None]:
    with ExitStack() as hooks:
        for layer in () if model is None else model.modules():
            hooks.enter_context(
                layer.register_forward_pre_hook(
                    lambda _, *given: _marked(given), with_kwargs=True, prepend=True
                )
            )
            hooks.enter_context(layer.register_forward_hook(lambda _, given, result: _marked(result)))
        yield


def _marked(tensors: Any) -> Any:
    """Mark all tensors. The same tensor gets the same mark, since attention checks whether query and key are
    one object.
    """
    marks: dict[int, Tensor] = {}
    return tree_map_only(
        Tensor, lambda one: marks.setdefault(id(one), torch.ops.aten.alias.default(one)), tensors
    )


def open_modules(model: nn.Module, ways: list[Call], used: set[int]) -> dict[str, str]:
    """Those modules by path, and what could act there. used: the ids of the parameters and buffers that the
    traces use.
    """
    found: dict[str, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    kept = {id(tensor) for tensor in model.state_dict(keep_vars=True).values() if tensor.is_floating_point()}
    for name, tensor in tensors:
        if id(tensor) in kept - used:
            for path in _around(name):
                found.setdefault(path, f"{name} takes no part in the traced passes and may act on it")
    if missing := _not_given(model, ways):
        for path, module in model.named_modules(remove_duplicate=False):
            if _optional(module):
                found.setdefault(path, f"{missing} of forward is not in the example input and may act on it")
    return found


def stack(node: torch.fx.Node) -> list[str]:
    """Paths of the modules whose forward calls led to this operation, the model's own ("") first."""
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]


def within(node: torch.fx.Node) -> Iterator[str]:
    """Paths of the modules that have this operation's result in their own code. The trace must be marked."""
    modules = stack(node)
    yield from modules[-1:]
    # an argument comes from the module around it, and a result goes there
    if node.target is torch.ops.aten.alias.default:
        yield from modules[-2:-1]


def _around(name: str) -> list[str]:
    """ "", "a" and "a.b" for "a.b.weight"."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def _not_given(model: nn.Module, ways: list[Call]) -> str | None:
    """The first argument with a default that every call leaves out."""
    given = [
        inspect.signature(type(model).forward).bind(model, *call.args, **call.kwargs).arguments
        for call in ways
    ]
    return next(
        (name for name in _optional(model) if not any(name in arguments for arguments in given)), None
    )


def _optional(module: nn.Module) -> list[str]:
    """Arguments of forward with a default, in a class that is not of a library we know."""
    if type(module).forward.__module__.partition(".")[0] in KNOWN:
        return []
    parameters = inspect.signature(type(module).forward).parameters.values()
    return [one.name for one in parameters if one.default is not one.empty]
