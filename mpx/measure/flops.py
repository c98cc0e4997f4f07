"""Count the floating point operations of a training step from the shapes of its operators. A multiply-add
counts as two.

    with FlopCounter() as counter:
        loss = model(x).sum(); loss.backward()
    counter.total

PyTorch's counter has formulas for matrix products, convolutions and attention. This module adds products with
a vector, grouped products and fused RNN operators, which PyTorch counts as zero. RNNs have one
formula for CPU (oneDNN) and GPU (cuDNN, MIOpen), so that an LSTM has the same FLOPs on every device. A
product with a weight of torch.sparse.to_sparse_semi_structured counts as the dense one, of which a 2:4 kernel
multiplies half: settings are compared by the same arithmetic. A call of the kernel itself,
torch._cslt_sparse_mm, counts as zero. This module also replaces the formula for the backward pass of a
convolution. PyTorch (2.14) counts the gradient of a grouped filter as that of a dense one, which is C times
too many for a depthwise convolution over C channels. Source: torch/utils/flop_counter.py; operator
signatures: aten/src/ATen/native/native_functions.yaml.
"""

from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import (
    conv_flop_count,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
    shape_wrapper,
)

from mpx.precision.ops import KnowsUpdates
from mpx.private.torch_dispatch import (
    CPU_ATTENTION,
    CPU_ATTENTION_BACKWARD,
    CUDNN_RNN,
    CUDNN_RNN_BACKWARD,
    FUSED_ATTENTION_BACKWARD,
    GROUPED_MM,
    computing_again,
)

aten = torch.ops.aten
Shape = tuple[int, ...]


class FlopCounter(KnowsUpdates):
    """Enter it around a training step. `total` sums `model_flops` of its operations; element-wise operations
    count as zero, as usual, and so does the optimizer's own arithmetic.

    PyTorch's FlopCounterMode adds hooks to the modules, with which torch.autograd.grad of a module's input
    fails, as in a gradient penalty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # where a linear layer comes as a whole
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        self.total += 0 if self.updating else model_flops(func, args, kwargs, out)
        return out


def model_flops(func: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """As `operation_flops`, without what is computed again, which is no part of the model's arithmetic:
    operations that torch.utils.checkpoint repeats, and the scores in the backward pass of fused attention. So
    it does not depend on the kernel.

    Source: Chowdhery et al., PaLM, arXiv:2204.02311 (appendix B).
    """
    flops = 0 if computing_again() else operation_flops(func, args, kwargs, out)
    if func.overloadpacket not in FUSED_ATTENTION_BACKWARD:
        return flops
    # of five products, three are with queries or keys, two with values
    size, of_values = args[1].shape[-1], args[3].shape[-1]
    return flops * 2 * (size + of_values) // (3 * size + 2 * of_values)


def operation_flops(func: Any, args: tuple, kwargs: dict, out: Any) -> int:
    """The floating point operations of one call of an ATen operation; 0 for an operation without a
    formula.
    """
    own = _formulas().get(func.overloadpacket)
    formula = flop_registry.get(func.overloadpacket) if own is None else shape_wrapper(own)
    return formula(*args, **kwargs, out_val=out) if formula is not None else 0


@cache
def _formulas() -> dict[Any, Any]:
    formulas = {
        aten.mv: lambda matrix, vector, **_: 2 * prod(matrix),
        aten.addmv: lambda added, matrix, vector, **_: 2 * prod(matrix),
        GROUPED_MM: _grouped,
        aten.convolution_backward: _convolution_backward,
        aten.mkldnn_rnn_layer: lambda x, w_ih, w_hh, *_, **__: rnn_flop(x, [w_ih, w_hh]),
        aten.mkldnn_rnn_layer_backward: lambda x, w_ih, w_hh, *_, **__: 2 * rnn_flop(x, [w_ih, w_hh]),
    }
    formulas |= dict.fromkeys((CUDNN_RNN, aten.miopen_rnn), lambda x, weights, *_, **__: rnn_flop(x, weights))
    formulas |= dict.fromkeys(
        (CUDNN_RNN_BACKWARD, aten.miopen_rnn_backward), lambda x, weights, *_, **__: 2 * rnn_flop(x, weights)
    )
    attention_on_cpu = {  # PyTorch 2.11 has no formula for them
        CPU_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
        CPU_ATTENTION_BACKWARD: lambda grad, query, key, value, *_, **__: sdpa_backward_flop_count(
            grad, query, key, value
        ),
    }
    return formulas | {
        operator: formula for operator, formula in attention_on_cpu.items() if operator not in flop_registry
    }


def rnn_flop(inputs: Shape, weights: list[Shape]) -> int:
    """FLOPs of the forward pass of all layers and directions. The backward pass takes twice as many:
    gradients of inputs and of weights.

    inputs: [T, B, in], [B, T, in] or packed [tokens, in]. Each weight matrix multiplies one vector per token:
    for an LSTM 2·B·T·4H·(in + H) per layer and direction.
    """
    return 2 * prod(inputs[:-1]) * sum(prod(shape) for shape in weights if len(shape) == 2)


def _grouped(first: Shape, second: Shape, *_, **__) -> int:
    """Each group has a part of the rows, columns or terms, unless both operands have a matrix for each
    group.
    """
    return 2 * (first[0] if len(first) == len(second) == 3 else 1) * prod(first[-2:]) * second[-1]


def _convolution_backward(
    grad_out,
    inputs,
    weight,
    _bias,
    _stride,
    _padding,
    _dilation,
    transposed,
    _output_padding,
    _groups,
    wanted,
    **_,
):
    """Each gradient takes as many FLOPs as the forward pass. wanted: whether the gradients of inputs and
    weight are computed.
    """
    return conv_flop_count(inputs, weight, grad_out, transposed=transposed) * sum(wanted[:2])
