"""An LSTM layer in a narrower format, with cuDNN's arithmetic: it rounds at the same places, and multiplies and adds in the same order.

- The products with the input are rounded. The gates are summed and squashed in FP32.
- The gates and the cell state are stored rounded. The output is computed from the cell state before it is rounded.
- In the backward pass, the gradients of the gates, the cell state and the output are stored rounded.
- The gradient of the recurrent weights rounds the first step's share by itself.
- In TF32 only the operands of products are rounded.

`Kernel` has the differences between cuDNN's three kernels. experiments/emulation compares the bits with cuDNN 9.19 on an H200.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpx.precision.ops import part_of
from mpx.precision.recurrent import stacked
from mpx.precision.rounding import ROUND, same
from mpx.precision.squash import sigmoid, tanh_approx


@dataclass(frozen=True)
class Kernel:
    rounds_recurrent: bool  # operands and results of the products with the recurrent weights are rounded
    rounds_cell: bool  # the cell state and its gradient are rounded from step to step
    joined_biases: bool  # the two biases are added to each other first
    tanh: Any  # in the forward pass
    tanh_last: Any  # in the backward pass, of the last step's cell state
    tanh_before: Any  # in the backward pass, of the other steps' cell states
    sums_by_gate: bool  # in the backward pass, products with the recurrent weights are summed within each gate first


STANDARD = Kernel(
    rounds_recurrent=True, rounds_cell=True, joined_biases=False, tanh=torch.tanh, tanh_last=torch.tanh, tanh_before=torch.tanh,
    sums_by_gate=False,
)  # fmt: skip
PERSISTENT = Kernel(  # FP16 and TF32 up to 128 units
    rounds_recurrent=False, rounds_cell=True, joined_biases=True, tanh=tanh_approx, tanh_last=torch.tanh, tanh_before=tanh_approx,
    sums_by_gate=True,
)  # fmt: skip
STATIC = Kernel(  # PyTorch asks for it by name
    rounds_recurrent=False, rounds_cell=False, joined_biases=True, tanh=tanh_approx, tanh_last=tanh_approx, tanh_before=tanh_approx,
    sums_by_gate=False,
)  # fmt: skip
PERSISTENT_UNITS = 128  # at most


def kernel(fmt: str, batch: int, inputs: int, units: int, *, single: bool) -> Kernel:
    """The kernel that cuDNN runs. single: one layer in one direction.

    The rule for STATIC is PyTorch's (aten/src/ATen/native/cudnn/RNN.cpp, get_algo, on devices of compute capability 8 and above).
    """
    if fmt != "bf16" and units <= PERSISTENT_UNITS:  # also where PyTorch asks for STATIC
        return PERSISTENT
    static = fmt == "fp16" and single and units <= 1024 and units % 128 == inputs % 128 == batch % 8 == 0 and batch <= 128
    return STATIC if static else STANDARD


class LSTMLayer(torch.autograd.Function):
    """One layer and direction: x [T, B, I], h0 and c0 [B, H] -> out [T, B, H], c of the last step [B, H]. All tensors are FP32.

    w [4H, I], u [4H, H], b_ih and b_hh [4H] have the gates in the order i, f, g, o.
    """

    @staticmethod
    def forward(
        ctx: Any, fmt: str, how: Kernel, x: Tensor, h0: Tensor, c0: Tensor, w: Tensor, u: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, Tensor]:
        store, operand = roundings(fmt)
        x, h, c, w, u, b_ih, b_hh = (store(value) for value in (x, h0, c0, w, u, b_ih, b_hh))
        w, recurrent = operand(w), _recurrent(fmt, how)
        gates, cells, outs = [], [c], [h]
        with part_of("rnn", fmt):
            from_input = store(operand(x).flatten(0, 1) @ w.t()).unflatten(0, x.shape[:2])
            for t in range(x.shape[0]):
                total = from_input[t] + recurrent(h, u.t())
                i, f, g, o = (total + (b_ih + b_hh) if how.joined_biases else total + b_ih + b_hh).chunk(4, 1)
                i, f, g, o = sigmoid(i), sigmoid(f), how.tanh(g), sigmoid(o)
                c = _fused(i, g, f * c)
                h, kept = store(o * how.tanh(c)), store(c)
                c = kept if how.rounds_cell else c
                gates.append(store(torch.cat((i, f, g, o), 1)))
                cells.append(kept)
                outs.append(h)
        ctx.save_for_backward(x, w, u, torch.stack(gates), torch.stack(cells), torch.stack(outs))
        ctx.fmt, ctx.how = fmt, how
        return torch.stack(outs[1:]), cells[-1]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_cell: Tensor):
        x, w, u, gates, cells, outs = ctx.saved_tensors
        store, operand = roundings(ctx.fmt)
        with part_of("rnn", ctx.fmt):
            d_gates, dh, dc = _through_time(store(d_out), store(d_cell), u, gates, cells, ctx.fmt, ctx.how)
            rows = operand(d_gates).flatten(0, 1)  # [T * B, 4H]
            dx = store(rows @ w).unflatten(0, x.shape[:2])
            dw = store(rows.t() @ operand(x).flatten(0, 1))
            du = recurrent_gradient(d_gates, outs[:-1], ctx.fmt)
        db = store(d_gates.sum((0, 1)))
        return None, None, dx, store(dh), store(dc), dw, du, db, db


def _through_time(d_out: Tensor, dc: Tensor, u: Tensor, gates: Tensor, cells: Tensor, fmt: str, how: Kernel):
    """Gradients of the gates before they are squashed [T, B, 4H], of h0 and of c0 [B, H]."""
    (store, _), recurrent = roundings(fmt), _by_gate if how.sums_by_gate else _recurrent(fmt, how)
    dh, found, ones = torch.zeros_like(dc), [], torch.ones_like(dc)
    for t in reversed(range(len(d_out))):
        (i, f, g, o), tanh = gates[t].chunk(4, 1), how.tanh_last if t == len(d_out) - 1 else how.tanh_before
        squashed = tanh(cells[t + 1])
        dh = d_out[t] + dh
        dc = dc + (dh * o) * _fused(-squashed, squashed, ones)
        parts = (dc * g) * (i * (1 - i)), (dc * cells[t]) * (f * (1 - f)), (dc * i) * _fused(-g, g, ones), (dh * squashed) * (o * (1 - o))
        found.append(store(torch.cat(parts, 1)))
        dc = store(dc * f) if how.rounds_cell else dc * f
        dh = recurrent(found[-1], u)
    return torch.stack(found[::-1]), dh, dc


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a · b + c with one rounding."""
    return (a.double() * b + c).float()


def _recurrent(fmt: str, how: Kernel) -> Any:
    """The product with the recurrent weights u [4H, H]."""
    if not how.rounds_recurrent:
        return torch.matmul
    store, operand = roundings(fmt)
    return lambda a, b: store(operand(a) @ operand(b))


def recurrent_gradient(d_gates: Tensor, states: Tensor, fmt: str) -> Tensor:
    """The gradient of the recurrent weights [4H, H]. d_gates: [T, B, 4H]. states: the input of each step [T, B, H]."""
    store, operand = roundings(fmt)
    d_gates, states = operand(d_gates), operand(states)
    first = store(d_gates[0].t() @ states[0])
    if len(d_gates) == 1:
        return first
    return store(first + store(d_gates[1:].flatten(0, 1).t() @ states[1:].flatten(0, 1)))


def _by_gate(d_gates: Tensor, u: Tensor) -> Tensor:
    i, f, g, o = (part @ weight for part, weight in zip(d_gates.chunk(4, 1), u.chunk(4), strict=True))
    return i + f + g + o


def roundings(fmt: str) -> tuple[Any, Any]:
    """(how stored values are rounded, how operands of products are rounded beyond that)"""
    return (same, ROUND[fmt]) if fmt == "tf32" else (ROUND[fmt], same)


def lstm(
    fmt: str, x: Tensor, hx: tuple[Tensor, Tensor], flat: list[Tensor], biases: bool, layers: int, *how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments and results of torch.lstm, computed in `fmt`. x: [T, B, I], or [B, T, I] if batch_first. Dtypes are kept."""
    *_, bidirectional, batch_first = how
    kind = kernel(fmt, x.shape[0 if batch_first else 1], x.shape[2], hx[0].shape[2], single=layers == 1 and not bidirectional)

    def run(at: int, x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        out, c = LSTMLayer.apply(fmt, kind, x, *(value.float() for value in (hx[0][at], hx[1][at], *weights)))
        return out, out[-1], c

    return tuple(value.to(x.dtype) for value in stacked(run, x.float(), flat, biases, layers, *how))
