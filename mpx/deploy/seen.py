"""See what layers are given, and what they return, while a model computes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn


@contextmanager
def seen(model: nn.Module, names: Iterable[str], see: Callable[[str, tuple, dict[str, Any], Any], None]) -> Iterator[None]:
    """Inside, each call of one of the named layers ends with see(name, args, kwargs, output)."""

    def hook(name: str) -> Callable[..., None]:
        def told(layer: nn.Module, *call: Any) -> None:
            see(name, *call)

        return told

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(hook(name), with_kwargs=True))
        yield
