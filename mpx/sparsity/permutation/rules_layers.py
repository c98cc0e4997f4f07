"""Rules for layers with parameters: their inputs' channels are those of the weight's columns, their outputs' those of its rows.

A rule is called rule(walk, shapes of the results, **arguments by their names in the operation's schema).
"""

import torch
from torch import Tensor

from mpx.sparsity.permutation.walk import Parameter, Walk


def linear(walk: Walk, shapes: list[torch.Size], input: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """weight: [out, in]."""
    walk.tie(walk.labels(input), walk.axis(weight, 1))
    return walk.spread(_outputs(walk, weight, bias), len(shapes[0]) - 1, shapes[0])


def conv(walk: Walk, shapes: list[torch.Size], input: Tensor, weight: Parameter, bias: Parameter | None, groups: int, **_) -> Tensor:
    """weight: [out, in / groups, *kernel]. With as many groups as channels it acts on each channel alone."""
    dim = len(shapes[0]) - len(weight.shape) + 1
    inputs, outputs = walk.along(walk.labels(input), dim), _outputs(walk, weight, bias)
    if groups == 1:
        walk.tie(inputs, walk.axis(weight, 1))
    elif len(inputs) == len(outputs) == groups:
        walk.tie(inputs, outputs)
    else:
        rows = len(outputs) // groups
        for group, own in enumerate(inputs.chunk(groups)):
            walk.tie(own, walk.axis(weight, 1, rows=(group * rows, group * rows + rows)))
        walk.tag(inputs.view(groups, -1), torch.arange(groups)[:, None])
        walk.tag(outputs.view(groups, -1), torch.arange(groups)[:, None])
    return walk.spread(outputs, dim, shapes[0])


def embedding(walk: Walk, shapes: list[torch.Size], weight: Parameter, **_) -> Tensor:
    """weight: [entries, features]; entries are looked up by number, so they stay."""
    walk.channels.pin(walk.axis(weight, 0), f"entries of {weight.name} are looked up by their number")
    return walk.spread(walk.axis(weight, 1), len(shapes[0]) - 1, shapes[0])


def channel_norm(walk: Walk, shapes: list[torch.Size], input: Tensor, **parameters) -> Tensor:
    """Batch and instance norm: every channel (dimension 1) has its own statistics and parameters."""
    channels = walk.along(walk.labels(input), 1)
    _follow(walk, channels, parameters)
    return walk.spread(channels, 1, shapes[0])


def prelu(walk: Walk, shapes: list[torch.Size], self: Tensor, weight: Parameter) -> Tensor:
    """weight: one slope, or [channels]."""
    return channel_norm(walk, shapes, self, weight=weight)


def group_norm(walk: Walk, shapes: list[torch.Size], input: Tensor, num_groups: int, **parameters) -> Tensor:
    channels = walk.along(walk.labels(input), 1)
    _follow(walk, channels, parameters)
    walk.tag(channels.view(num_groups, -1), torch.arange(num_groups)[:, None])
    return walk.spread(channels, 1, shapes[0])


def layer_norm(walk: Walk, shapes: list[torch.Size], input: Tensor, normalized_shape: list[int], **parameters) -> Tensor:
    """Layer and RMS norm over the last dimension."""
    labels = walk.labels(input)
    if len(normalized_shape) > 1:
        for parameter in parameters.values():
            if isinstance(parameter, Parameter):
                walk.give_up(parameter, shapes[0])
        return walk.give_up(labels, shapes[0])
    _follow(walk, labels, parameters)
    walk.tag_rows(labels, (labels.dim() - 1,))
    return labels


def _outputs(walk: Walk, weight: Parameter, bias: Parameter | None) -> Tensor:
    outputs = walk.axis(weight, 0)
    if bias is not None:
        walk.tie(outputs, walk.axis(bias, 0))
    return outputs


def _follow(walk: Walk, channels: Tensor, parameters: dict) -> None:
    """Scale, shift and statistics, each [channels], go with the channels."""
    for parameter in parameters.values():
        if isinstance(parameter, Parameter) and parameter.shape != (1,):
            walk.tie(channels, walk.axis(parameter, 0))


LAYERS = {
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
}
