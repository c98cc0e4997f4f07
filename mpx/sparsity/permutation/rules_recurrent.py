"""The rule for torch.nn.LSTM, GRU and RNN. A hidden unit is one row of each gate and one column of the
recurrent weight.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mpx.sparsity.permutation.walk import Parameter, Walk


def recurrent(
    gates: int,
    walk: Walk,
    shapes: list[torch.Size],
    input: Tensor,
    hx,
    params: list[Parameter],
    bidirectional: bool,
    **_,
) -> list[Tensor]:
    """Labels of the output [..., directions · hidden] and of each last state [layers · directions, ...,
    hidden].

    params: per layer and direction weight_ih [gates · hidden, in], weight_hh [gates · hidden, hidden] and
    optionally two biases. Hidden units can only move if the initial state is the same for every unit, such as
    zeros, since a given state does not move.
    """
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    inputs = walk.labels(input)
    # proj_size: the units and their outputs are different channels
    if params[1].shape[0] != gates * params[1].shape[1]:
        return [walk.give_up(shapes[0], *params, inputs, *states)] * len(shapes)
    directions, cells = 2 if bidirectional else 1, _cells(params)
    units = []
    for first in range(0, len(cells), directions):
        outputs = []
        for number, cell in enumerate(cells[first : first + directions], start=first):
            walk.tie(inputs, walk.axis(cell[0], 1))
            outputs.append(_hidden_units(walk, gates, cell, [walk.labels(state)[number] for state in states]))
        inputs = torch.cat(outputs)
        units += outputs
    last = torch.stack(units)  # [layers · directions, hidden]
    last = last.view(len(units), *[1] * (len(shapes[1]) - 2), -1).expand(shapes[1])
    return [inputs.expand(shapes[0]), *[last] * len(states)]


def _cells(params: list[Parameter]) -> list[list[Parameter]]:
    """One list of parameters per layer and direction; each starts with a matrix for the inputs and one for
    the hidden units.
    """
    starts = [number for number in range(0, len(params), 2) if len(params[number].shape) == 2]
    return [params[start:stop] for start, stop in zip(starts, [*starts[1:], len(params)], strict=True)]


def _hidden_units(walk: Walk, gates: int, cell: list[Parameter], states: list[Tensor]) -> Tensor:
    units = walk.axis(cell[1], 1)
    for parameter in cell:
        walk.tie(walk.axis(parameter, 0).view(gates, -1), units)
    for state in states:
        walk.tie(state, units)
    return units


GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
RECURRENT: dict[str, Callable] = {name: partial(recurrent, gates) for name, gates in GATES.items()}
