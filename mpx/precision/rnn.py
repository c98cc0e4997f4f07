"""BF16 for RNNs under autocast on CUDA, where PyTorch runs them in FP16."""

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mpx.precision.rounding import stored_in
from mpx.private.torch_dispatch import tree_map

RNNS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def has_rnn(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


class BFloat16RNN(TorchFunctionMode):
    """Casts an RNN's input, state and weights to BF16 and runs it outside autocast.

    PyTorch's autocast casts cuDNN's RNNs to FP16, whatever its dtype is (`_cudnn_rnn_cast_reflatten` in
    aten/src/ATen/autocast_mode.cpp). Without loss scaling, a BF16 run would then overflow and underflow as FP16 does. The cast weights are
    not one chunk of memory, so cuDNN copies them at each call; that warning is expected.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in RNNS:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cuda", enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            return func(*tree_map(partial(stored_in, torch.bfloat16), args), **(kwargs or {}))
