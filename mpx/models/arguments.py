"""Errors in `model.kwargs`: one line that says what the constructor accepts."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable

from mpx.errors import UserError, nearest


def unexpected(error: TypeError, builder: Callable, name: str) -> str:
    """The message for a TypeError that the network `name` raised. builder: the library's function that makes
    it.

    Python says `ResNet.__init__() got an unexpected keyword argument 'wdith'`. The class is looked up in the
    builder's module for what it accepts, because builders themselves take **kwargs.
    """
    found = re.match(r"([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if twice := re.search(r"got multiple values for keyword argument '(\w+)'", str(error)):
        return (
            f"model.kwargs.{twice[1]} is set by {name} itself; leave it out, or name a variant of "
            f"{name} that differs in it."
        )
    if not found:
        return f"model.kwargs does not suit {name}: {error}"
    class_name, argument = found[1].split(".")[0], found[2]
    constructor = getattr(sys.modules[builder.__module__], class_name, builder)
    return unknown(argument, name, accepted(constructor))


def check_not_swallowed(model_class: type, builder: Callable, kwargs: dict, name: str) -> None:
    """Raise UserError for an argument that a torchvision class would ignore: some take any **kwargs.

    Allowed are the arguments of the class and of all functions in the builder's module, which take some out
    on the way.
    """
    functions = [
        f
        for f in vars(sys.modules[builder.__module__]).values()
        if inspect.isfunction(f) and f.__module__ == builder.__module__
    ]
    allowed = set(accepted(model_class)).union(*map(accepted, functions))
    for key in kwargs:
        if key not in allowed:
            raise UserError(unknown(key, name, accepted(model_class)))


def accepted(function: Callable) -> list[str]:
    """Names of the arguments that a caller can give by keyword."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind in by_keyword and p.name != "self"
    ]


def unknown(argument: str, name: str, allowed: Iterable[str]) -> str:
    """The message for an argument that the network `name` does not have."""
    allowed = list(allowed)
    return (
        f"model.kwargs.{argument} is not an argument of {name}; allowed: "
        f"{', '.join(allowed)}.{nearest(argument, allowed)}"
    )
