"""Rules for layers with parameters. The channels of the input are the weight's columns, those of the output
its rows.

A rule is called as rule(walk, shapes of the results, **arguments by their names in the operation's schema).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mpx.sparsity.permutation.channels import moving_dims, varies
from mpx.sparsity.permutation.walk import Parameter, Sides, Value, Walk


def linear(
    walk: Walk, shapes: list[torch.Size], input: Value, weight: Value, bias: Value | None
) -> Tensor | Sides:
    """weight: [out, in]. Channels in other dimensions of the input than the last pass through, as further
    sides of the output.
    """
    columns, sides = walk.axis(walk.matrix(weight), 1), walk.sides(input)
    beside = [side for side in sides if moving_dims(side) and not varies(side, -1)]
    for side in sides:
        if not any(side is one for one in beside):
            walk.tie(side, columns)
    if len(beside) == len(sides):
        walk.channels.pin(columns, f"{walk.operation} sums over positions")
    beside = [side.narrow(-1, 0, 1).expand(shapes[0]) for side in beside]
    outputs = walk.spread(_outputs(walk, weight, bias), len(shapes[0]) - 1, shapes[0])
    return Sides((*beside, outputs)) if beside else outputs


def conv(
    walk: Walk, shapes: list[torch.Size], input: Value, weight: Value, bias: Value | None, groups: int, **_
) -> Tensor:
    """weight: [out, in / groups, *kernel]. With as many groups as inputs, each input channel has its own
    outputs.
    """
    dim = len(shapes[0]) - len(weight.shape) + 1
    inputs, outputs = walk.along(walk.labels(input), dim), _outputs(walk, walk.matrix(weight), bias)
    if groups == 1:
        walk.tie(inputs, walk.axis(weight, 1))
    elif len(inputs) == groups:
        walk.tie(inputs.repeat_interleave(len(outputs) // groups), outputs)
    else:
        rows = len(outputs) // groups
        for group, own in enumerate(inputs.chunk(groups)):
            walk.tie(own, walk.axis(weight, 1, rows=(group * rows, group * rows + rows)))
        _keep_groups(walk, groups, inputs, outputs)
    return walk.spread(outputs, dim, shapes[0])


def embedding(walk: Walk, shapes: list[torch.Size], weight: Parameter, **_) -> Tensor:
    """weight: [entries, features]. Entries are looked up by number, so they stay."""
    walk.channels.pin(walk.axis(weight, 0), f"entries of {weight.name} are looked up by their number")
    return walk.spread(walk.axis(weight, 1), len(shapes[0]) - 1, shapes[0])


def channel_norm(walk: Walk, shapes: list[torch.Size], input: Value, **parameters) -> Tensor:
    """Batch and instance norm: each channel (dimension 1) has its own statistics and parameters. The order
    within a channel is free.
    """
    labels = walk.labels(input)
    if not varies(labels, 1):
        walk.join(labels, (0, *range(2, labels.dim())))
        return labels
    channels = walk.along(labels, 1)
    _follow(walk, channels, parameters)
    return walk.spread(channels, 1, shapes[0])


def prelu(walk: Walk, shapes: list[torch.Size], self: Value, weight: Parameter) -> Tensor:
    """weight: one slope, or [channels]."""
    channels = walk.along(walk.labels(self), 1)
    _follow(walk, channels, {"weight": weight})
    return walk.spread(channels, 1, shapes[0])


def group_norm(walk: Walk, shapes: list[torch.Size], input: Value, num_groups: int, **parameters) -> Tensor:
    channels = walk.along(walk.labels(input), 1)
    _follow(walk, channels, parameters)
    _keep_groups(walk, num_groups, channels)
    return walk.spread(channels, 1, shapes[0])


def layer_norm(
    walk: Walk, shapes: list[torch.Size], input: Value, normalized_shape: list[int], **parameters
) -> Tensor:
    """Layer and RMS norm over the last dimensions, any of which may be the channels. parameters:
    [*normalized_shape].
    """
    labels = walk.labels(input)
    for parameter in parameters.values():
        if isinstance(parameter, Value):
            for side in walk.sides(parameter):
                if set(moving_dims(side)) <= set(moving_dims(labels)):
                    walk.tie(labels, side)
                else:
                    walk.hold(side, walk.unknown)
    walk.join(labels, tuple(range(-len(normalized_shape), 0)))
    return labels


def _outputs(walk: Walk, weight: Value, bias: Value | None) -> Tensor:
    outputs = walk.axis(weight, 0)
    if bias is not None:
        walk.tie(outputs, walk.axis(bias, 0))
    return outputs


def _keep_groups(walk: Walk, groups: int, *channels: Tensor) -> None:
    for every in channels:
        walk.tag(every.view(groups, -1), torch.arange(groups)[:, None])


def _follow(walk: Walk, channels: Tensor, parameters: dict) -> None:
    """Tie scale, shift and statistics, each [channels], to the channels."""
    for parameter in parameters.values():
        if isinstance(parameter, Value) and tuple(parameter.shape) != (1,):
            walk.tie(channels, walk.labels(parameter))


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
    """torch.nn.LSTM, GRU and RNN. A hidden unit is one row of each gate and one column of the recurrent
    weight.

    Returns the labels of the output [..., directions · hidden] and of each last state [layers · directions,
    ..., hidden].

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


LAYERS: dict[str, Callable] = {
    "linear": linear,
    "conv1d": conv,
    "conv2d": conv,
    "conv3d": conv,
    "embedding": embedding,
    "batch_norm": channel_norm,
    "instance_norm": channel_norm,
    "prelu": prelu,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "rms_norm": layer_norm,
    "lstm": partial(recurrent, 4),
    "gru": partial(recurrent, 3),
    "rnn_tanh": partial(recurrent, 1),
    "rnn_relu": partial(recurrent, 1),
}
