"""Forward hooks: see the inputs and outputs of layers while a model computes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def forward_hooks(model: nn.Module, names: Iterable[str], see: Callable[[str, tuple, dict[str, Any], Any], None]) -> Iterator[None]:
    """A context in which each call of a named layer is followed by see(name, args, kwargs, output)."""

    def hook(name: str) -> Callable[..., None]:
        return lambda layer, *call: see(name, *call)

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(hook(name), with_kwargs=True))
        yield
