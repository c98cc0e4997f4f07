"""Cast a model's inputs, outputs and weights, and its state_dict back to FP32."""

from collections.abc import Iterator, Mapping, Set
from copy import copy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mpx.private.torch_modules import BATCH_NORM

HALVES = frozenset({torch.float16, torch.bfloat16})
MASTER = "_amp_master"  # attribute of an FP16 weight: its FP32 master weight


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
