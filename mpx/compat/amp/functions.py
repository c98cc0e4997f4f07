"""Functions that ask for a type of their own where operations are cast: half_function, float_function, promote_function.

Source of names and meanings: NVIDIA apex 25.05, apex/amp/amp.py. Their wrapped functions act inside the forward of a model initialised
with O1 and after amp.init, and are the plain functions everywhere else.
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


def half_function(fn: Callable) -> Callable:
    """Decorator: floating-point arguments become FP16."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if here.region in (None, DISABLED):
            return fn(*args, **kwargs)
        args, kwargs = cast((args, kwargs), torch.float16, {torch.float32, torch.bfloat16})
        return fn(*args, **kwargs)

    return wrapper


def float_function(fn: Callable) -> Callable:
    """Decorator: 16-bit arguments become FP32 and nothing inside the function is cast."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if here.region in (None, DISABLED):
            return fn(*args, **kwargs)
        args, kwargs = cast((args, kwargs), torch.float32, HALVES)
        with disable_casts():
            return fn(*args, **kwargs)

    return wrapper


def promote_function(fn: Callable) -> Callable:
    """Decorator: where floating-point arguments differ in type, all become the widest."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        found = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        if here.region not in (None, DISABLED) and len(found) > 1:
            args, kwargs = cast((args, kwargs), reduce(torch.promote_types, found))
        return fn(*args, **kwargs)

    return wrapper


def register_half_function(module: Any, name: str) -> None:
    """half_function for `module.name`, which is replaced: register_half_function(my_ops, "fused_matmul")."""
    _register(module, name, half_function)


def register_float_function(module: Any, name: str) -> None:
    """float_function for `module.name`, which is replaced: register_float_function(torch, "sigmoid")."""
    _register(module, name, float_function)


def register_promote_function(module: Any, name: str) -> None:
    """promote_function for `module.name`, which is replaced."""
    _register(module, name, promote_function)


def _register(module: Any, name: str, decorator: Callable[[Callable], Callable]) -> None:
    if not hasattr(module, name):
        raise UserError(f"amp.register_{decorator.__name__}: {getattr(module, '__name__', module)} has no function {name!r}.")
    setattr(module, name, decorator(getattr(module, name)))
