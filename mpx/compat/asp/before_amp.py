"""A model that mpx.compat.amp has initialised, for a while as it was before: its own forward, and FP32 weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from mpx.compat.amp.casting import HALVES, MASTER, agreeing
from mpx.compat.amp.forward import Forward


@contextmanager
def before_amp(model: nn.Module) -> Iterator[bool]:
    """Within it, the parameters are the same objects and hold what their master weights do; afterwards 16 bits of what they held last.

    Gives whether amp has initialised the model, or a part. Master weights themselves and their optimizer state are left alone.
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
        if halves:  # otherwise the weights lie where they lay
            _flatten(forwards)
        yield bool(forwards)
    finally:
        for tensor, half, gradient in halves.values():
            half.copy_(tensor.data)
            _hold(tensor, half, None if gradient is None else gradient.copy_(tensor.grad))
        for layer, forward in forwards.items():
            layer.forward = forward


def masters(model: nn.Module) -> dict[str, Tensor]:
    """The FP32 master weights that amp keeps beside the model's, by the weights' names. Within before_amp: afterwards, and for other
    models, a state_dict holds copies."""
    held = {name: getattr(tensor, MASTER, None) for name, tensor in model.state_dict(keep_vars=True).items()}
    return {name: master for name, master in held.items() if master is not None}


def _hold(tensor: Tensor, values: Tensor, gradient: Tensor | None) -> None:
    tensor.grad = None  # it has to have the type of its tensor
    tensor.data = values
    tensor.grad = gradient


def _flatten(layers: dict[nn.Module, Forward]) -> None:
    """cuDNN wants the weights of a recurrent layer in one piece."""
    for module in chain.from_iterable(layer.modules() for layer in layers):
        if isinstance(module, nn.RNNBase):
            with torch.no_grad():
                module.flatten_parameters()
