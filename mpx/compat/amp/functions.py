"""Decorators that set the type of a function wherever casts are on: half_function, float_function, promote_function.

Source of names and meanings: NVIDIA apex 25.05, apex/amp/amp.py. Casts are on inside the forward of an O1 model and after amp.init.
Everywhere else the decorated functions are unchanged.
"""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp.casting import HALVES, cast
from mpx.compat.amp.casts import DISABLED, disable_casts, here
from mpx.errors import UserError
from mpx.private.torch_dispatch import tree_leaves


def _casts_are_on() -> bool:
    return here.region not in (None, DISABLED)


def half_function(fn: Callable) -> Callable:
    """Decorator: cast floating-point arguments to FP16."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _casts_are_on():
            args, kwargs = cast((args, kwargs), torch.float16, {torch.float32, torch.bfloat16})
        return fn(*args, **kwargs)

    return wrapper


def float_function(fn: Callable) -> Callable:
    """Decorator: cast 16-bit arguments to FP32, and disable casts inside the function."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _casts_are_on():
            return fn(*args, **kwargs)
        args, kwargs = cast((args, kwargs), torch.float32, HALVES)
        with disable_casts():
            return fn(*args, **kwargs)

    return wrapper


def promote_function(fn: Callable) -> Callable:
    """Decorator: cast floating-point arguments of different types to the widest."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        found = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        if _casts_are_on() and len(found) > 1:
            args, kwargs = cast((args, kwargs), reduce(torch.promote_types, found))
        return fn(*args, **kwargs)

    return wrapper


def register_half_function(module: Any, name: str) -> None:
    """Replace `module.name` by its half_function: register_half_function(my_ops, "fused_matmul")."""
    _register(module, name, half_function)


def register_float_function(module: Any, name: str) -> None:
    """Replace `module.name` by its float_function: register_float_function(torch, "sigmoid")."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """Replace `module.name` by its promote_function."""
    _register(module, name, promote_function)


def _register(module: Any, name: str, decorator: Callable[[Callable], Callable]) -> None:
    if not hasattr(module, name):
        raise UserError(f"amp.register_{decorator.__name__}: {getattr(module, '__name__', module)} has no function {name!r}.")
    setattr(module, name, decorator(getattr(module, name)))
