"""Can a model be in channels_last?"""

from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from mpx.models.evaluating import evaluating


def without_layout(model: nn.Module) -> str | None:
    """Why a model cannot be laid out so, whatever its forward pass does; None where it can."""
    if not any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        return "no convolutions of images"
    if any(value.dim() == 5 for value in chain(model.parameters(), model.buffers())):
        return "it is for weights of four dimensions, and some have five, as those of nn.Conv3d"
    return None


@torch.no_grad()
def fails_in_layout(model: nn.Module, *inputs: Any) -> str | None:
    """Why the forward pass fails in channels_last; None where it succeeds. The model itself keeps its layout.

    Many models have `x.view(len(x), -1)` after a convolution, which needs the ordinary layout.
    """
    every = chain(model.named_parameters(), model.named_buffers())
    laid_out = {name: value.to(memory_format=torch.channels_last) for name, value in every if value.dim() == 4}
    try:
        with evaluating(model):  # batch norm's running means must not change
            functional_call(model, laid_out, inputs)
    except Exception as error:  # of any kind; the ordinary layout works
        return f"the model cannot take it ({' '.join(str(error).split())[:100]})"
    return None
