"""BF16 for RNNs under autocast on CUDA, where PyTorch would silently run them in FP16."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

RNNS = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)


def has_rnn(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


@contextmanager
def own_flat_weights(model: nn.Module) -> Iterator[None]:
    """A context in which the RNNs' weights may be exchanged for others, which are forgotten afterwards.

    An RNN keeps a list of the weights that it last ran with. Left there, copies made of the weights for one step keep that step's autograd
    graph alive, and with it the weights' AccumulateGrad nodes, which belong to the stream that they were made on: a CUDA graph on another
    stream could not be recorded ("The AccumulateGrad node's stream does not match", torch 2.11).
    """
    kept = [(layer, layer._flat_weights, layer._flat_weight_refs) for layer in model.modules() if isinstance(layer, nn.RNNBase)]
    try:
        yield
    finally:
        for layer, weights, refs in kept:
            layer._flat_weights, layer._flat_weight_refs = weights, refs


class BFloat16RNN(TorchFunctionMode):
    """Casts an RNN's input, state and weights to BF16 and runs it outside autocast.

    PyTorch's autocast casts cuDNN RNNs to FP16 whatever its dtype (`_cudnn_rnn_cast_reflatten` in aten/src/ATen/autocast_mode.cpp
    names kHalf; seen on an H200 with torch 2.11): a BF16 run without loss scaling would then overflow and underflow as FP16 does.
    The cast weights are no longer one chunk of memory, so cuDNN copies them together at each call; that warning is expected.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in RNNS:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cuda", enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            return func(*tree_map(_bfloat16, args), **(kwargs or {}))


def _bfloat16(value: Any) -> Any:
    return value.bfloat16() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
