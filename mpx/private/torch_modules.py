"""Private API of PyTorch 2.11 to 2.15: modules and their tensors, loaders, generators, the compiler."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.stateless import _reparametrize_module

CONVOLUTION = _ConvNd  # the base class of all convolutions
BATCH_NORM = _BatchNorm  # the base class of all batch norms
NORM_WITH_STATISTICS = _NormBase  # the base class of the norms that may track running statistics
# (module, tensors): inside, the module computes with the tensors; publicly, torch.func.functional_call does
# so for a single call
reparametrized = _reparametrize_module


def buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """A module's own buffers by name, also those that are None, which named_buffers leaves out."""
    return module._buffers


@contextmanager
def own_flat_weights(model: nn.Module) -> Iterator[None]:
    """Let the RNNs of a model forget the weights that are exchanged for theirs inside.

    An RNN keeps a private list of the weights that it last ran with. Copies of the weights in it would keep
    the autograd graph of their step alive, whose AccumulateGrad nodes belong to one stream. A CUDA graph on
    another stream could then not be recorded.
    """
    kept = [
        (layer, layer._flat_weights, layer._flat_weight_refs)
        for layer in model.modules()
        if isinstance(layer, nn.RNNBase)
    ]
    try:
        yield
    finally:
        for layer, weights, refs in kept:
            layer._flat_weights, layer._flat_weight_refs = weights, refs


def stop_workers(loader: Any) -> None:
    """Stop the persistent workers of a DataLoader now. Publicly, they wait for garbage collection, which can
    take seconds.
    """
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def renew_generator(device: torch.device) -> None:
    """Let the device's default generator work again after a failed CUDA graph capture.

    The generator stays in capture mode, and only these undocumented methods replace its state with that of a
    fresh one.
    """
    generator = torch.cuda.default_generators[device.index or 0]
    fresh = torch.Generator(device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def compiler_errors() -> tuple[type[BaseException], ...]:
    """What torch.compile raises where the compiler fails and not the function. No public class covers
    both.
    """
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import
    from torch._inductor.exc import InductorError

    return TorchDynamoException, InductorError
