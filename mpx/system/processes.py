"""The processes of a distributed training, as PyTorch's process group knows them; and of the model that they
train the weights and the modes of its layers.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mpx.errors import UserError


def rank_and_world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) for a process that trains alone."""
    return (
        (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
    )


def from_all(part: Any) -> list[Any]:
    """What each process gives for `part`, by rank. All processes call this."""
    _, world = rank_and_world()
    parts = [part] * world
    if world > 1:
        dist.all_gather_object(parts, part)
    return parts


def refuse_sharded(weights: Iterable[Tensor]) -> None:
    """Raise UserError for weights of which each process holds a part: masks and loss scale would be of that
    part."""
    if any(isinstance(weight, DTensor) for weight in weights):
        raise UserError(
            "the model's weights are sharded over processes (FSDP), which mpx does not support. Use DDP, "
            "with the whole model on each."
        )


@torch.no_grad()
def not_finite(model: nn.Module) -> str | None:
    """The name of the first trained weight that is infinite or NaN; None if there is none.

    A frozen one may be a mask of −∞.
    """
    return next(
        (
            name
            for name, weight in model.named_parameters()
            if weight.requires_grad and not _is_finite(weight)
        ),
        None,
    )


def _is_finite(weight: Tensor) -> bool:
    """True also for a weight that has no answer: one without values, lazy, in 8 bits, or of a tensor class of
    another library."""
    try:
        return bool(torch.isfinite(weight).all())
    except (RuntimeError, ValueError, TypeError):  # NotImplementedError is a RuntimeError
        return True


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then restore each layer's mode, since `model.train()` would also
    change frozen layers.
    """
    training = [layer for layer in model.modules() if layer.training]
    model.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True
