"""Casts of a model's inputs, outputs and weights, and of its state_dict back to FP32. Casts around
operations: on inside the forward of an O1 model and after amp.init, off inside disable_casts; and decorators
that set the type of a function wherever they are on.

Source of names and meanings: NVIDIA apex 25.05, apex/amp/amp.py, handle.py and README.md.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import reduce, wraps
from itertools import chain
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpx.errors import UserError
from mpx.precision.emulate import Emulate
from mpx.private.torch_dispatch import tree_leaves, without_modes
from mpx.private.torch_modules import BATCH_NORM

HALVES = frozenset({torch.float16, torch.bfloat16})
MASTER = "_amp_master"  # attribute of an FP16 weight: its FP32 master weight
EMULATED, DISABLED = "emulated", "disabled"


def cast(value: Any, dtype: torch.dtype, sources: Set[torch.dtype] | None = None) -> Any:
    """Cast floating-point tensors to `dtype`, including those in lists, tuples, mappings and objects with
    .to(dtype).

    sources: cast only tensors of these types; None: all floating-point types, and a user's objects with
    .to().
    """
    if isinstance(value, Tensor):
        wanted = value.is_floating_point() if sources is None else value.dtype in sources
        return value.to(dtype) if wanted else value
    if isinstance(value, nn.Module | str):
        return value
    if hasattr(value, "to") and sources is None:
        return value.to(dtype)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cast(item, dtype, sources) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(cast(item, dtype, sources) for item in value)
    if type(value) is dict:  # torch.compile cannot trace copy(dict)
        return {key: cast(item, dtype, sources) for key, item in value.items()}
    if isinstance(value, Mapping):
        same: Any = copy(value)  # the constructor of a defaultdict or a ModelOutput takes other arguments
        for key, item in value.items():
            same[key] = cast(item, dtype, sources)
        return same
    return value


def castable(model: nn.Module, *, keep_batchnorm_fp32: bool) -> Iterator[Tensor]:
    """The floating-point parameters and buffers that a cast of the model changes."""
    for module in model.modules():
        if not (keep_batchnorm_fp32 and isinstance(module, BATCH_NORM)):
            for tensor in chain(module.parameters(recurse=False), module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    yield tensor


def cast_model(model: nn.Module, dtype: torch.dtype, *, keep_batchnorm_fp32: bool) -> None:
    """Cast weights, buffers and gradients in place, so that optimizers keep their parameter objects."""
    for tensor in castable(model, keep_batchnorm_fp32=keep_batchnorm_fp32):
        gradient, tensor.grad = tensor.grad, None
        tensor.data = tensor.data.to(dtype)
        tensor.grad = None if gradient is None else gradient.to(dtype)
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
        if dtype in HALVES:
            module.register_state_dict_post_hook(_save_fp32)
            module.register_load_state_dict_pre_hook(_load_masters)


def agreeing(weight: Tensor) -> Tensor:
    """FP32 values of an FP16 weight: those of its master, except where the weight was changed without the
    master.
    """
    master = getattr(weight, MASTER, None)
    if master is None:
        return weight.detach().float()
    return torch.where(
        master.detach().to(weight.dtype) == weight.detach(), master.detach(), weight.detach().float()
    )


def _tensors_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _save_fp32(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    for name, tensor in _tensors_of(module):
        stored = state_dict.get(prefix + name)
        if isinstance(stored, Tensor) and stored.dtype in HALVES:
            state_dict[prefix + name] = agreeing(tensor)


@torch.no_grad()
def _load_masters(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, weight in _tensors_of(module):
        master, stored = getattr(weight, MASTER, None), state_dict.get(prefix + name)
        if master is not None and isinstance(stored, Tensor) and stored.shape == master.shape:
            master.copy_(stored)


class Here(local):  # not a ContextVar, which torch.compile cannot trace
    region: str | None = None  # EMULATED, DISABLED, or the device type for which autocast is on


here = Here()


def casts_are_on() -> bool:
    return here.region not in (None, DISABLED)


def emulated(device: torch.device) -> bool:
    """Whether FP16 is emulated. CPUs have FP16, but their FP16 products are hundreds of times slower than
    FP32.
    """
    return device.type == "cpu"


@contextmanager
def _in_region(region: str, context: AbstractContextManager) -> Iterator[None]:
    before, here.region = here.region, region
    try:
        with context:
            yield
    finally:
        here.region = before


def casts(device: torch.device, *, cache: bool) -> AbstractContextManager:
    """Cast around operations, as in O1. Has no effect inside disable_casts. cache: cast each weight once;
    PyTorch drops the cached casts when the outermost region ends.
    """
    if here.region == DISABLED:
        return nullcontext()
    if emulated(device):
        return _in_region(EMULATED, Emulate("fp16"))
    return _in_region(device.type, torch.autocast(device.type, dtype=torch.float16, cache_enabled=cache))


def disable_casts() -> AbstractContextManager:
    """Run operations in the type of their operands. Tensors from before may already be FP16."""
    region = here.region
    if region is None or region == DISABLED:
        return _in_region(DISABLED, nullcontext())
    if region == EMULATED:  # all modes, since those that Emulate entered may no longer be the innermost
        return _in_region(DISABLED, without_modes())
    return _in_region(DISABLED, torch.autocast(region, enabled=False))


class Handle:
    """`amp._amp_state.handle`: the casts of one initialize with O1 or of amp.init, which _deactivate ends for
    good.
    """

    def __init__(self) -> None:
        self.on, self.entered = True, ExitStack()

    def _deactivate(self) -> None:
        self.on = False
        self.entered.close()


def cast_everywhere(handle: Handle, *, allow_banned: bool) -> None:
    """See amp.init."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # the region does not end before the weights change
    handle.entered.enter_context(casts(device, cache=False))
    handle.entered.callback(setattr, F, "binary_cross_entropy", F.binary_cross_entropy)
    F.binary_cross_entropy = (float_function if allow_banned else _banned)(F.binary_cross_entropy)


class Banned(UserError, NotImplementedError):
    """The error for F.binary_cross_entropy of FP16 tensors, as in apex."""


def _banned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def refuses(*args: Any, **kwargs: Any) -> Tensor:
        halves = any(
            isinstance(leaf, Tensor) and leaf.dtype in HALVES for leaf in tree_leaves((args, kwargs))
        )
        if halves and here.region != DISABLED:
            raise Banned(
                "F.binary_cross_entropy of FP16 tensors: use F.binary_cross_entropy_with_logits, "
                "amp.register_float_function(torch, 'sigmoid') or amp.init(allow_banned=True)."
            )
        with disable_casts():
            return function(*args, **kwargs)

    return refuses


def float_function(fn: Callable) -> Callable:
    """Decorator: where casts are on, cast 16-bit arguments to FP32, and disable casts inside the function."""

    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not casts_are_on():
            return fn(*args, **kwargs)
        args, kwargs = cast((args, kwargs), torch.float32, HALVES)
        with disable_casts():
            return fn(*args, **kwargs)

    return wrapper


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
