"""Optimizers that compute the loss several times a step."""

import inspect

from torch.optim import Optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether its step calls a function that computes the loss, as that of LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty
