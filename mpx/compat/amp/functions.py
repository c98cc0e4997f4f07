"""Decorators that set the type of a function wherever casts are on: half_function, float_function,
promote_function.

Source of names and meanings: NVIDIA apex 25.05, apex/amp/README.md. Elsewhere the functions are unchanged.
"""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp.casting import cast
from mpx.compat.amp.casts import casts_are_on, float_function
from mpx.private.torch_dispatch import tree_leaves


def half_function(fn: Callable) -> Callable:
    """Decorator: cast floating-point arguments to FP16."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if casts_are_on():
            args, kwargs = cast((args, kwargs), torch.float16, {torch.float32, torch.bfloat16})
        return fn(*args, **kwargs)

    return wrapper


def promote_function(fn: Callable) -> Callable:
    """Decorator: cast floating-point arguments of different types to the widest."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves = tree_leaves((args, kwargs))
        types = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()}
        if casts_are_on() and len(types) > 1:
            args, kwargs = cast((args, kwargs), reduce(torch.promote_types, types))
        return fn(*args, **kwargs)

    return wrapper


def register_half_function(module: Any, name: str) -> None:
    """Replace `module.name` by its half_function: register_half_function(my_ops, "fused_matmul")."""
    setattr(module, name, half_function(getattr(module, name)))


def register_float_function(module: Any, name: str) -> None:
    """Replace `module.name` by its float_function: register_float_function(torch, "sigmoid")."""
    setattr(module, name, float_function(getattr(module, name)))


def register_promote_function(module: Any, name: str) -> None:
    """Replace `module.name` by its promote_function."""
    setattr(module, name, promote_function(getattr(module, name)))
