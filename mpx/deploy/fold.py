"""Fold batch norm into the convolution before it: one kernel less, and a convolution with a bias, as a product of rows has."""

import copy
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mpx.deploy.seen import seen

TOLERANCE = 1e-4  # relative error of the outputs in FP32


@torch.no_grad()
def folded(model: nn.Module, x: Tensor) -> nn.Module:
    """A copy in which each Conv2d before a BatchNorm2d has the norm's scale and shift; `model` itself if that changes the results.

    model: in evaluation mode, in FP32. x: a batch, on which pairs are found and results are compared.
    """
    pairs = _pairs(model, x)
    made = copy.deepcopy(model)
    for conv, norm in pairs.items():
        made.set_submodule(conv, fuse_conv_bn_eval(made.get_submodule(conv), made.get_submodule(norm)))
        made.set_submodule(norm, nn.Identity())
    return made.requires_grad_(False) if pairs and same_outputs(made, model, x) else model


def same_outputs(made: nn.Module, model: nn.Module, x: Tensor) -> bool:
    """Whether what was made of the model computes the same. Not so where an output of a replaced layer is read elsewhere, too."""
    expected = model(x)
    return bool((made(x) - expected).norm() <= TOLERANCE * expected.norm())


def _pairs(model: nn.Module, x: Tensor) -> dict[str, str]:
    """Names of convolutions and of the norms that read their outputs; each is called once."""
    outputs: list[tuple[str, Tensor]] = []  # of convolutions, all kept alive, so that each is another object
    inputs: list[tuple[str, Tensor]] = []  # of norms

    def note(name: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        outputs.append((name, out)) if name in convs else inputs.append((name, args[0]))

    layers = dict(model.named_modules())
    convs = {name for name, layer in layers.items() if type(layer) is nn.Conv2d}
    norms = {name for name, layer in layers.items() if type(layer) is nn.BatchNorm2d and layer.track_running_stats}
    with seen(model, convs | norms, note):
        model(x)
    calls = Counter(name for name, _ in (*outputs, *inputs))
    return {conv: norm for conv, out in outputs for norm, x in inputs if out is x and calls[conv] == calls[norm] == 1}
