"""Where operations are cast to FP16, and functions that ask for a type of their own there: half_function, float_function, …

Source of names and meanings: NVIDIA apex 25.05, apex/amp/amp.py and handle.py (disable_casts). Their wrapped functions act inside the
forward of a model initialised with O1, and are the plain functions everywhere else.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce, wraps
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from mpx.compat.amp.casting import HALVES, cast
from mpx.errors import UserError
from mpx.precision.emulate import Emulate

EMULATED, DISABLED = "emulated", "disabled"


class Here(local):  # not a ContextVar: torch.compile traces this one
    region: str | None = None  # EMULATED, DISABLED, or the type of device that autocast is on for


here = Here()


def emulated(device: torch.device) -> bool:
    """A CPU has FP16, but multiplies in it hundreds of times slower than in FP32."""
    return device.type == "cpu"


@contextmanager
def casts(device: torch.device) -> Iterator[None]:
    """Cast around operations, as O1 does. Inside disable_casts it changes nothing."""
    if here.region == DISABLED:
        yield
        return
    before, here.region = here.region, EMULATED if emulated(device) else device.type
    try:
        with Emulate("fp16") if emulated(device) else torch.autocast(device.type, dtype=torch.float16):
            yield
    finally:
        here.region = before


@contextmanager
def disable_casts() -> Iterator[None]:
    """Run operations in the type of their operands: inside an O1 model's forward, or around calls of such a model.

    Tensors made before may be FP16 already; use .float() on them.
    """
    before, here.region = here.region, DISABLED
    try:
        with _without_casts(before):
            yield
    finally:
        here.region = before


def _without_casts(region: str | None) -> AbstractContextManager:
    if region in (None, DISABLED):
        return nullcontext()
    return _without_modes() if region == EMULATED else torch.autocast(region, enabled=False)


@contextmanager
def _without_modes() -> Iterator[None]:
    """Without every dispatch and function mode, since those that Emulate entered may no longer be the innermost."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def half_function(fn: Callable) -> Callable:
    """Decorator: floating-point arguments become FP16 (emulated: are rounded to it, and so is the result)."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if here.region in (None, DISABLED):
            return fn(*args, **kwargs)
        args, kwargs = cast((args, kwargs), torch.float16, {torch.float32, torch.bfloat16})
        if here.region != EMULATED:
            return fn(*args, **kwargs)
        args, kwargs = cast((args, kwargs), torch.float32, HALVES)
        return cast(cast(fn(*args, **kwargs), torch.float16, {torch.float32}), torch.float32, HALVES)

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
