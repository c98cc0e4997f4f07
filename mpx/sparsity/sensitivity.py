"""Sensitivity of each layer to pruning: the loss with only that layer pruned."""

from collections.abc import Callable
from typing import Any

import torch

from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import kept_magnitude


@torch.no_grad()
def sensitivity(masks: Masks, loss: Callable[[], float]) -> list[dict[str, Any]]:
    """One row per layer to prune, the most sensitive first. The weights are unchanged on return.

    loss: returns the loss of the model with its current weights. A row has name, type, shape, kept_magnitude (0 to 1), dense_loss (nothing
    pruned), loss and loss_change.
    """
    dense = loss()
    rows = []
    for weight in masks.pruned:
        values, mask = weight.parameter, masks.pattern.mask(weight.parameter)
        before = values.clone()
        values.masked_fill_(~mask, 0)
        pruned = loss()
        values.copy_(before)
        row = {"name": weight.name, "type": weight.type, "shape": list(values.shape), "kept_magnitude": kept_magnitude(values, mask)}
        rows.append(row | {"dense_loss": dense, "loss": pruned, "loss_change": pruned - dense})
    return sorted(rows, key=lambda row: -row["loss_change"])
