"""An LSTM layer in a narrower format, rounded exactly where cuDNN rounds.

Found by comparing with cuDNN 9.19 on an H200 (experiments/emulation): in BF16 and FP16 the products with the input and with the state
are each rounded to the format, added and squashed in FP32; the gates and the cell state are stored rounded, but the output is computed
from the cell state before that. In the backward pass the gradients of the gates, of the cell state and of the output are stored rounded;
the first step's share of the recurrent weights' gradient is rounded on its own. In TF32 only the operands of products are rounded.
Up to 128 units cuDNN runs FP16 and TF32 in one persistent kernel, whose recurrent products stay in FP32.
"""

from typing import Any

import torch
from torch import Tensor

from mpx.precision.ops import part_of
from mpx.precision.rounding import ROUND, same

PERSISTENT = 128  # units up to which the recurrence is one kernel


class LSTMLayer(torch.autograd.Function):
    """One layer and direction: x [T, B, I], h0 and c0 [B, H] -> out [T, B, H], c of the last step [B, H]; FP32 tensors throughout.

    w [4H, I], u [4H, H], b_ih and b_hh [4H]: the gates in the order i, f, g, o.
    """

    @staticmethod
    def forward(ctx: Any, fmt: str, x: Tensor, h0: Tensor, c0: Tensor, w: Tensor, u: Tensor, b_ih: Tensor, b_hh: Tensor):
        store, operand = roundings(fmt)
        x, h, c, w, u, b_ih, b_hh = (store(value) for value in (x, h0, c0, w, u, b_ih, b_hh))
        w, recurrent = operand(w), _recurrent(fmt, u)
        gates, cells, outs = [], [c], [h]
        with part_of("rnn", fmt):
            from_input = store(operand(x).flatten(0, 1) @ w.t()).unflatten(0, x.shape[:2])
            for t in range(x.shape[0]):
                i, f, g, o = (from_input[t] + recurrent(h, u.t()) + b_ih + b_hh).chunk(4, 1)
                i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
                c = f * c + i * g
                h, c = store(o * c.tanh()), store(c)
                gates.append(store(torch.cat((i, f, g, o), 1)))
                cells.append(c)
                outs.append(h)
        ctx.save_for_backward(x, w, u, torch.stack(gates), torch.stack(cells), torch.stack(outs))
        ctx.fmt = fmt
        return torch.stack(outs[1:]), c

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_cell: Tensor):
        x, w, u, gates, cells, outs = ctx.saved_tensors
        store, operand = roundings(ctx.fmt)
        with part_of("rnn", ctx.fmt):
            d_gates, dh, dc = _through_time(store(d_out), store(d_cell), u, gates, cells, store, _recurrent(ctx.fmt, u))
            rows = operand(d_gates).flatten(0, 1)  # [T * B, 4H]
            dx = store(rows @ w).unflatten(0, x.shape[:2])
            dw = store(rows.t() @ operand(x).flatten(0, 1))
            states, batch = operand(outs[:-1]).flatten(0, 1), x.shape[1]
            du = store(rows[:batch].t() @ states[:batch])
            if len(x) > 1:
                du = store(du + store(rows[batch:].t() @ states[batch:]))
        db = store(d_gates.sum((0, 1)))
        return None, dx, store(dh), dc, dw, du, db, db


def _through_time(d_out: Tensor, dc: Tensor, u: Tensor, gates: Tensor, cells: Tensor, store: Any, recurrent: Any):
    """Gradients of the gates before their squashing [T, B, 4H], and of h0 and c0 [B, H]."""
    dh, found = torch.zeros_like(dc), []
    for t in reversed(range(len(d_out))):
        (i, f, g, o), squashed = gates[t].chunk(4, 1), cells[t + 1].tanh()
        dh = d_out[t] + dh
        dc = dc + dh * o * (1 - squashed * squashed)
        parts = dc * g * i * (1 - i), dc * cells[t] * f * (1 - f), dc * i * (1 - g * g), dh * squashed * o * (1 - o)
        found.append(store(torch.cat(parts, 1)))
        dc = store(dc * f)
        dh = recurrent(found[-1], u)
    return torch.stack(found[::-1]), dh, dc


def _recurrent(fmt: str, u: Tensor) -> Any:
    """The product with the recurrent weights u [4H, H]."""
    store, operand = roundings(fmt)
    if fmt != "bf16" and u.shape[1] <= PERSISTENT:
        return torch.matmul
    return lambda a, b: store(operand(a) @ operand(b))


def roundings(fmt: str) -> tuple[Any, Any]:
    """(how values are stored, how operands of products are rounded on top of that)."""
    return (same, ROUND[fmt]) if fmt == "tf32" else (ROUND[fmt], same)


def lstm(
    fmt: str, x: Tensor, hx: tuple[Tensor, Tensor], flat: list[Tensor], biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """torch._VF.lstm's arguments and results, computed in `fmt`. x: [T, B, I], or [B, T, I] if batch_first. Dtypes are kept."""
    dtype, directions = x.dtype, 2 if bidirectional else 1
    per_layer = 4 if biases else 2
    x = (x.transpose(0, 1) if batch_first else x).float()
    last_h, last_c = [], []
    for layer in range(layers):
        if layer and dropout and train:
            x = torch.nn.functional.dropout(x, dropout)
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = [weight.float() for weight in flat[at * per_layer : (at + 1) * per_layer]]
            weights += [] if biases else [weights[0].new_zeros(len(weights[0]))] * 2
            sequence = x.flip(0) if direction else x
            out, c = LSTMLayer.apply(fmt, sequence, hx[0][at].float(), hx[1][at].float(), *weights)
            last_h.append(out[-1])
            last_c.append(c)
            outs.append(out.flip(0) if direction else out)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
    out = (x.transpose(0, 1) if batch_first else x).to(dtype)
    return out, torch.stack(last_h).to(dtype), torch.stack(last_c).to(dtype)
