"""Temporarily undo mpx.compat.amp's initialisation of a model: its own forward, and FP32 weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from mpx.compat.amp.casting import HALVES, MASTER, agreeing
from mpx.compat.amp.forward import Forward


@contextmanager
def before_amp(model: nn.Module) -> Iterator[bool]:
    """Inside the context, the parameters are the same objects with the values of their master weights. On exit, they return to 16 bits
    with their last values.

    Yields whether amp initialised the model or a part of it. Master weights and their optimizer state do not change.
    """
    forwards = {layer: layer.__dict__["forward"] for layer in model.modules() if isinstance(layer.__dict__.get("forward"), Forward)}
    tensors = chain.from_iterable(chain(layer.parameters(), layer.buffers()) for layer in forwards)
    halves = {id(tensor): (tensor, tensor.data, tensor.grad) for tensor in tensors if tensor.dtype in HALVES}
    try:
        for layer, forward in forwards.items():
            del layer.forward
            if forward.inner is not None:
                layer.forward = forward.inner
        for tensor, _, gradient in halves.values():
            _hold(tensor, agreeing(tensor), None if gradient is None else gradient.float())
        if halves:  # otherwise no weight has moved in memory
            _flatten(forwards)
        yield bool(forwards)
    finally:
        for tensor, half, gradient in halves.values():
            half.copy_(tensor.data)
            _hold(tensor, half, None if gradient is None else gradient.copy_(tensor.grad))
        for layer, forward in forwards.items():
            layer.forward = forward


def masters(model: nn.Module) -> dict[str, Tensor]:
    """amp's FP32 master weights by the names of the model's weights. Call it inside before_amp, since outside a state_dict may have
    copies."""
    held = {name: getattr(tensor, MASTER, None) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: master for name, master in held.items() if master is not None}


def _hold(tensor: Tensor, values: Tensor, gradient: Tensor | None) -> None:
    tensor.grad = None  # a gradient must have the type of its tensor
    tensor.data = values
    tensor.grad = gradient


def _flatten(layers: dict[nn.Module, Forward]) -> None:
    """Make the weights of recurrent layers contiguous, as cuDNN requires."""
    for module in chain.from_iterable(layer.modules() for layer in layers):
        if isinstance(module, nn.RNNBase):
            with torch.no_grad():
                module.flatten_parameters()
