"""Which layers bear pruning: the loss when each one alone is pruned, the model otherwise dense."""

from collections.abc import Callable
from typing import Any

import torch

from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import kept_magnitude


@torch.no_grad()
def sensitivity(masks: Masks, loss: Callable[[], float]) -> list[dict[str, Any]]:
    """One row per layer that is to be pruned, the most sensitive first; the weights are as before when it returns.

    loss: of the model as it is. A row has name, type, shape, kept_magnitude (0 to 1), dense_loss (nothing pruned), loss, loss_change.
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
