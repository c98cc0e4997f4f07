"""The blocks of a network: layers in lists. Nothing outside a block uses its weights, so FSDP gathers them for its call alone."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mpx.models.evaluating import evaluating
from mpx.private.torch_dispatch import tree_leaves

LISTS = (nn.Sequential, nn.ModuleList)


def blocks(model: nn.Module, x: Tensor) -> list[nn.Module]:
    """The layers of the model's outermost nn.Sequential and nn.ModuleList. Runs the model on the batch `x` once.

    Left out are layers that share weights with others, that are not called, or whose weights the model uses without calling them.
    """
    uses = Counter(_weights(model))
    found = [block for block in _listed(model) if (own := Counter(_weights(block))) and all(uses[key] == own[key] for key in own)]
    watch = _Watch({key: block for block in found for key in _weights(block)})
    with torch.no_grad(), evaluating(model), watch, ExitStack() as hooks:
        for block in found:
            hooks.enter_context(block.register_forward_pre_hook(watch.enter))
            hooks.enter_context(block.register_forward_hook(watch.leave))
        model(x)
    return [block for block in found if block in watch.called and block not in watch.used_outside]


class _Watch(TorchFunctionMode):
    """Notes which blocks are called, and whose weights are used outside their calls. owners: blocks by the ids of their weights."""

    def __init__(self, owners: dict[int, nn.Module]):
        super().__init__()
        self.owners = owners
        self.inside: list[nn.Module] = []
        self.called: set[nn.Module] = set()
        self.used_outside: set[nn.Module] = set()

    def enter(self, block: nn.Module, inputs: Any) -> None:
        self.inside.append(block)
        self.called.add(block)

    def leave(self, block: nn.Module, inputs: Any, output: Any) -> None:
        self.inside.pop()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.__name__ != "__get__":  # of .shape and the like, which needs no values
            owners = {self.owners.get(id(leaf)) for leaf in tree_leaves((args, kwargs or {}))}
            self.used_outside |= owners - {None, *self.inside}
        return func(*args, **(kwargs or {}))


def _weights(module: nn.Module) -> Iterator[int]:
    """The ids of the weights, as often as a layer has them."""
    return (id(weight) for layer in module.modules() for weight in layer.parameters(recurse=False))


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, LISTS) and not isinstance(child, LISTS):
            yield child
        else:
            yield from _listed(child)
