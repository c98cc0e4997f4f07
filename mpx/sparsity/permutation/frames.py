"""Modules whose own code may act on tensors in ways that no traced call shows.

A tensor is in a module's own code if the module takes it, returns it, or computes with it outside its
children. A parameter that no trace uses can only act in the own code of the module that holds it, or of a
module around that one. So the channels of the tensors there stay. It cannot reach the tensors inside the
children.

The same holds for an argument of `forward` that has a default and that no example gives: the channels stay in
all modules with such arguments. Models of the libraries below are exempt, since their optional arguments are
masks, positions, labels and caches.
"""

import inspect
from collections.abc import Iterator

import torch
from torch import nn

from mpx.sparsity.permutation.trace import Call

KNOWN = ("torch", "torchvision", "timm", "transformers")


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
    """Paths of the modules that have this operation's result in their own code. The trace must be marked (see
    trace.py).
    """
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
