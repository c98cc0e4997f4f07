"""GRUs, plain recurrent layers, and cells that are one kernel on a GPU. Values that the GPU stores have 16 bits, others FP32.

As in cuDNN's LSTM (mpx/precision/lstm.py) and in ATen's fused cells (aten/src/ATen/native/cuda/RNN.cu), the products with the input and
with the state are rounded, gates are summed and squashed in FP32, and the new state is stored rounded; their gradients likewise. The
gradient of a weight is one sum over all steps, rounded once. The bits have not been compared with cuDNN's GRU and RNN.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import dropout as drop

from mpx.precision.ops import part_of
from mpx.precision.rounding import same


class Whole(torch.autograd.Function):
    """function(*operands) -> a tuple, as one operation in `fmt`, which rounds its steps itself, in the backward pass too.

    Operands and results are 16-bit tensors; `function` gets FP32 copies.
    """

    @staticmethod
    def forward(ctx: Any, fmt: str, function: Callable[..., tuple[Tensor, ...]], *operands: Tensor) -> tuple[Tensor, ...]:
        # torch.utils.checkpoint would drop the tensors that the inner graph saves, and miss them when it repeats the operation.
        own = saved_tensors_hooks(Tensor.detach, same)
        with torch.set_grad_enabled(any(ctx.needs_input_grad)), part_of("rnn", fmt), own:
            leaves = [operand.detach().requires_grad_(operand.requires_grad) for operand in operands]
            results = [result.to(operands[0].dtype) for result in function(*(leaf.float() for leaf in leaves))]
        ctx.fmt, ctx.leaves, ctx.results = fmt, leaves, results
        return tuple(result.detach() for result in results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor):
        wanted = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        with torch.enable_grad(), part_of("rnn", ctx.fmt):
            found = iter(torch.autograd.grad(ctx.results, wanted, gradients, retain_graph=True))
        return None, None, *(next(found) if leaf.requires_grad else None for leaf in ctx.leaves)


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x, rounded to `dtype`. Its gradient is rounded too."""
    return x.to(dtype).float()


def gru_step(from_input: Tensor, from_state: Tensor, h: Tensor) -> Tensor:
    """[B, 3H], [B, 3H], [B, H] -> [B, H]: the gates in the order r, z, n."""
    (r, z, n), (state_r, state_z, state_n) = from_input.chunk(3, 1), from_state.chunk(3, 1)
    n = torch.tanh(n + torch.sigmoid(r + state_r) * state_n)
    return n + torch.sigmoid(z + state_z) * (h - n)


def tanh_step(from_input: Tensor, from_state: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(from_input + from_state)


def relu_step(from_input: Tensor, from_state: Tensor, h: Tensor) -> Tensor:
    return torch.relu(from_input + from_state)


def sequence(step: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., tuple[Tensor]]:
    """x [T, B, I], h [B, H], w [G, I], u [G, H], biases [G] -> (out [T, B, H],). step: one of the functions above."""

    def run(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor]:
        from_input, outs = stored(x.flatten(0, 1) @ w.t(), dtype).unflatten(0, x.shape[:2]) + b_ih, []
        for t in range(x.shape[0]):
            h = stored(step(from_input[t], stored(h @ u.t(), dtype) + b_hh, h), dtype)
            outs.append(h)
        return (torch.stack(outs),)

    return run


def layers(step: Callable[..., Tensor], fmt: str, x: Tensor, h0: Tensor, flat: list[Tensor], *how: Any) -> tuple[Tensor, Tensor]:
    """Arguments and results of torch.gru, rnn_tanh and rnn_relu, from 16-bit tensors."""

    def run(at: int, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        (out,) = Whole.apply(fmt, sequence(step, x.dtype), x, h0[at], *weights)
        return out, out[-1]

    return stacked(run, x, flat, *how)


def gru_cell(fmt: str, x: Tensor, h: Tensor, w: Tensor, u: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Tensor:
    """Arguments and result of torch.gru_cell, from 16-bit tensors."""
    biases = _or_zeros(w, b_ih, b_hh)
    return Whole.apply(fmt, sequence(gru_step, x.dtype), x[None], h, w, u, *biases)[0][0]


def lstm_cell(
    fmt: str, x: Tensor, hx: tuple[Tensor, Tensor], w: Tensor, u: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Arguments and results of torch.lstm_cell, from 16-bit tensors."""

    def run(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, Tensor]:
        total = stored(x @ w.t(), dtype) + stored(h @ u.t(), dtype) + b_ih + b_hh
        i, f, g, o = total.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    dtype = x.dtype
    return Whole.apply(fmt, run, x, *hx, w, u, *_or_zeros(w, b_ih, b_hh))


def _or_zeros(weight: Tensor, *biases: Tensor | None) -> list[Tensor]:
    return [weight.new_zeros(len(weight)) if bias is None else bias for bias in biases]


def stacked(
    run: Callable[..., tuple[Tensor, ...]], x: Tensor, flat: list[Tensor], biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Layers and directions of PyTorch's recurrent layers. x: [T, B, I], or [B, T, I] if batch_first.

    run(number, x [T, B, I], [w, u, b_ih, b_hh]) -> (out [T, B, H], each last state [B, H]) for one layer and direction. Returns the output
    of the last layer and the stacked states.
    """
    directions, per_layer, last = 2 if bidirectional else 1, 4 if biases else 2, []
    x = x.transpose(0, 1) if batch_first else x
    for layer in range(layers):
        if layer and dropout and train:
            x = drop(x, dropout)
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = flat[at * per_layer : (at + 1) * per_layer]
            weights += [] if biases else _or_zeros(weights[0], None, None)
            out, *states = run(at, x.flip(0) if direction else x, weights)
            outs.append(out.flip(0) if direction else out)
            last.append(states)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(states) for states in zip(*last, strict=True))
