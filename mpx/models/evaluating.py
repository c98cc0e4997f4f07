"""Evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then each layer back in its own: `model.train()` would also train layers that were frozen."""
    training = [layer for layer in model.modules() if layer.training]
    model.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True
