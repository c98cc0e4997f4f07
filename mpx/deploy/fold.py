"""Fold batch norm into the convolution before it. This saves a kernel, and the product that replaces the convolution adds the bias."""

import copy
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mpx.deploy.hooks import forward_hooks

TOLERANCE = 1e-4  # relative error of the outputs in FP32


@torch.no_grad()
def folded(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy in which each Conv2d before a BatchNorm2d has the norm's scale and shift; `model` itself if the results would change.

    model: in evaluation mode, in FP32. x: a batch, to find the pairs and to compare the results.
    """
    pairs = _pairs(model, x)
    made = copy.deepcopy(model)
    for conv, norm in pairs.items():
        made.set_submodule(conv, fuse_conv_bn_eval(made.get_submodule(conv), made.get_submodule(norm)))
        made.set_submodule(norm, nn.Identity())
    return made.requires_grad_(False) if pairs and same_outputs(made, model, x) else model


def same_outputs(made: nn.Module, model: nn.Module, x: Tensor) -> bool:
    """Whether both compute the same. They do not if the model reads the output of a replaced layer at another place, too."""
    expected = model(x)
    return bool((made(x) - expected).norm() <= TOLERANCE * expected.norm())


def _pairs(model: nn.Module, x: Tensor) -> dict[str, str]:
    """{convolution: the norm that reads its output}, by names. Both are called exactly once."""
    outputs: list[tuple[str, Tensor]] = []  # of convolutions; kept alive, so that no two have the same id
    inputs: list[tuple[str, Tensor]] = []  # of norms

    def note(name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        outputs.append((name, out)) if name in convs else inputs.append((name, args[0]))

    layers = dict(model.named_modules())
    convs = {name for name, layer in layers.items() if type(layer) is nn.Conv2d}
    norms = {name for name, layer in layers.items() if type(layer) is nn.BatchNorm2d and layer.track_running_stats}
    with forward_hooks(model, convs | norms, note):
        model(x)
    calls = Counter(name for name, _ in (*outputs, *inputs))
    return {conv: norm for conv, out in outputs for norm, x in inputs if out is x and calls[conv] == calls[norm] == 1}
