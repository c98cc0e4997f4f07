"""Private API of transformers 5.0 to 5.23."""

from collections.abc import Callable, Iterator
from typing import Any


def auto_class_of(auto_class: Any, adapt: Callable[[type], type]) -> type:
    """An auto class that builds `adapt(network)` where `auto_class` builds the class `network`.

    An auto class takes the network's class from a mapping, for which it has no public hook.
    """
    return type(
        auto_class.__name__, (auto_class,), {"_model_mapping": _Adapted(auto_class._model_mapping, adapt)}
    )


def has_network(auto_class: Any, config_class: type) -> bool:
    """Whether an auto class has a network for this configuration. Publicly, it only raises when it builds."""
    return config_class in auto_class._model_mapping


class _Adapted:
    """The mapping of an auto class from configurations to networks, with `adapt` applied to each network."""

    def __init__(self, plain: Any, adapt: Callable[[type], type]):
        self.plain, self.adapt = plain, adapt

    def __contains__(self, config_class: type) -> bool:
        return config_class in self.plain

    def __iter__(self) -> Iterator[type]:
        return iter(self.plain)

    def __getitem__(self, config_class: type) -> type | list[type]:
        found = self.plain[config_class]
        return (
            [self.adapt(network) for network in found]
            if isinstance(found, (list, tuple))
            else self.adapt(found)
        )


def init_as_pretrained(model: Any, layer: Any) -> None:
    """Give a new layer the random weights that a transformers model gives its own. There is no public
    initialiser.
    """
    model._init_weights(layer)
