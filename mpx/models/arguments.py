"""Wrong keyword arguments, told in one line with what the constructor accepts."""

import inspect
import re
import sys
from collections.abc import Callable

from mpx.errors import UserError, nearest


def accepted(function: Callable) -> list[str]:
    """Names of the arguments that can be given by keyword."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in by_keyword and p.name != "self"]


def unexpected(error: TypeError, builder: Callable, name: str) -> str:
    """The message for a TypeError that the network `name` raised; `builder` is the library function that makes it.

    Python says `ResNet.__init__() got an unexpected keyword argument 'wdith'`: the class is looked up in the builder's module for the list
    of what it accepts, since builders themselves take **kwargs.
    """
    found = re.match(r"([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if twice := re.search(r"got multiple values for keyword argument '(\w+)'", str(error)):
        return f"model.kwargs.{twice[1]} is set by {name} itself; leave it out, or name a variant of {name} that differs in it."
    if not found:
        return f"model.kwargs does not suit {name}: {error}"
    class_name, argument = found[1].split(".")[0], found[2]
    constructor = getattr(sys.modules[builder.__module__], class_name, builder)
    allowed = accepted(constructor)
    return f"model.kwargs.{argument} is not an argument of {name}; allowed: {', '.join(allowed)}.{nearest(argument, allowed)}"


def check_not_swallowed(model_class: type, builder: Callable, kwargs: dict, name: str) -> None:
    """Some torchvision classes take **kwargs and ignore what they do not know: a misspelt argument would have no effect.

    Allowed are the arguments of the class and of the functions beside its builder, which pick some out before.
    """
    functions = [f for f in vars(sys.modules[builder.__module__]).values() if inspect.isfunction(f) and f.__module__ == builder.__module__]
    allowed = set(accepted(model_class)).union(*map(accepted, functions))
    for key in kwargs:
        if key not in allowed:
            names = accepted(model_class)
            raise UserError(f"model.kwargs.{key} is not an argument of {name}; allowed: {', '.join(names)}.{nearest(key, names)}")
