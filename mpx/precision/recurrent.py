"""Recurrent layers in a narrower format: one rounding rule for LSTMs, GRUs and plain layers.

The products with the input and with the state are stored rounded, gates are summed and squashed in FP32, and
the new states are stored rounded; their gradients likewise. So does cuDNN's standard algorithm; its others
round less (experiments/emulation has the distance). In TF32 the operands of each product are rounded, and
nothing else (mpx/precision/emulate.py).
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import dropout as drop
from torch.overrides import TorchFunctionMode

from mpx.precision.formats import same, stored_in
from mpx.precision.ops import part_of
from mpx.private.torch_dispatch import tree_map

States = tuple[Tensor, ...]
# (product with the input, product with the state, states [B, H]) -> the new states
Step = Callable[..., States]


def lstm_step(from_input: Tensor, from_state: Tensor, h: Tensor, c: Tensor) -> States:
    """[B, 4H], [B, 4H]: the gates in the order i, f, g, o."""
    i, f, g, o = (from_input + from_state).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_step(from_input: Tensor, from_state: Tensor, h: Tensor) -> States:
    """[B, 3H], [B, 3H]: the gates in the order r, z, n."""
    (r, z, n), (state_r, state_z, state_n) = from_input.chunk(3, 1), from_state.chunk(3, 1)
    n = torch.tanh(n + torch.sigmoid(r + state_r) * state_n)
    return (n + torch.sigmoid(z + state_z) * (h - n),)


def plain_step(
    squash: Callable[[Tensor], Tensor], from_input: Tensor, from_state: Tensor, h: Tensor
) -> States:
    return (squash(from_input + from_state),)


LAYERS: dict[Callable, Step] = {
    torch.lstm: lstm_step,
    torch.gru: gru_step,
    torch.rnn_tanh: partial(plain_step, torch.tanh),
    torch.rnn_relu: partial(plain_step, torch.relu),
}


def layers(
    step: Step, fmt: str, x: Tensor, hx: Tensor | States, flat: list[Tensor], biases: bool, count: int,
    dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> States:  # fmt: skip
    """Arguments and results of torch.lstm, gru, rnn_tanh and rnn_relu. x: [T, B, I], or [B, T, I] if
    batch_first.
    """
    states: States = (hx,) if isinstance(hx, Tensor) else hx
    directions, per_layer, last = 2 if bidirectional else 1, 4 if biases else 2, []
    x = x.transpose(0, 1) if batch_first else x
    for layer in range(count):
        if layer and dropout and train:
            x = drop(x, dropout)
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = flat[at * per_layer : (at + 1) * per_layer]
            weights += [] if biases else [weights[0].new_zeros(len(weights[0]))] * 2
            first = (state[at] for state in states)
            out, *newest = _sequence(step, fmt, x.flip(0) if direction else x, *weights, *first)
            outs.append(out.flip(0) if direction else out)
            last.append(newest)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
    return x.transpose(0, 1) if batch_first else x, *(torch.stack(part) for part in zip(*last, strict=True))


def _sequence(step: Step, fmt: str, *operands: Tensor) -> States:
    """One layer and direction. operands: x [T, B, I], w [G, I], u [G, H], biases [G], and the states [B, H].

    Returns the outputs [T, B, H] and the last states.
    """
    run = partial(_through_time, step, operands[0].dtype)
    return run(*operands) if fmt == "tf32" else Whole.apply(fmt, run, *operands)


def _through_time(
    step: Step,
    dtype: torch.dtype,
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    *states: Tensor,
) -> States:
    from_input, outs = _stored(x.flatten(0, 1) @ w.t(), dtype).unflatten(0, x.shape[:2]) + b_ih, []
    for t in range(x.shape[0]):
        newest = step(from_input[t], _stored(states[0] @ u.t(), dtype) + b_hh, *states)
        states = tuple(_stored(state, dtype) for state in newest)
        outs.append(states[0])
    return torch.stack(outs), *states


def _stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x, rounded to `dtype`. Its gradient is rounded too."""
    return x.to(dtype).float()


class Whole(torch.autograd.Function):
    """function(*operands) -> a tuple, as one operation in `fmt`, which rounds its steps itself, in the
    backward pass too.

    Operands and results are 16-bit tensors; `function` gets FP32 copies.
    """

    @staticmethod
    def forward(ctx: Any, fmt: str, function: Callable[..., States], *operands: Tensor) -> States:
        # torch.utils.checkpoint would drop the tensors that the inner graph saves, and miss them when it
        # repeats this.
        keep = saved_tensors_hooks(Tensor.detach, same)
        with torch.set_grad_enabled(any(ctx.needs_input_grad)), part_of("rnn", fmt), keep:
            leaves = [operand.detach().requires_grad_(operand.requires_grad) for operand in operands]
            results = [
                result.to(operands[0].dtype) for result in function(*(leaf.float() for leaf in leaves))
            ]
        ctx.fmt, ctx.leaves, ctx.results = fmt, leaves, results
        return tuple(result.detach() for result in results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        with torch.enable_grad(), part_of("rnn", ctx.fmt):
            computed: Iterator[Tensor] = iter(
                torch.autograd.grad(ctx.results, wanted, gradients, retain_graph=True)
            )
        return None, None, *(next(computed) if leaf.requires_grad else None for leaf in ctx.leaves)


def has_rnn(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


class BFloat16RNN(TorchFunctionMode):
    """Casts an RNN's input, state and weights to BF16 and runs it outside autocast, on CUDA.

    PyTorch's autocast casts cuDNN's RNNs to FP16, whatever its dtype is (`_cudnn_rnn_cast_reflatten` in
    aten/src/ATen/autocast_mode.cpp). Without loss scaling, a BF16 run would then overflow and underflow as
    FP16 does. The cast weights are not one chunk of memory, so cuDNN copies them at each call; that warning
    is expected.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in LAYERS:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cuda", enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            return func(*tree_map(partial(stored_in, torch.bfloat16), args), **(kwargs or {}))
