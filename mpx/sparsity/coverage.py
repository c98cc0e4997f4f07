"""What a run reports of its pruning: the coverage table (one row per weight), the sparsity part of
result.json, and how much the loss rises when a single layer is pruned.
"""

from collections.abc import Callable
from typing import Any

import torch

from mpx.sparsity.kernels import sparse_kernel
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import kept_magnitude

# the sparsity part of a dense run
DENSE = dict.fromkeys(("backend", "recipe", "verified", "density", "kept_magnitude")) | {
    "pattern": "dense",
    "pruned_share": 0.0,
    "layers": [],
}
NOT_YET = "the run ended before the pruning"


def coverage(masks: Masks, *, fmt: str, device: torch.device) -> list[dict[str, Any]]:
    """One row per weight: name, type, shape, pruned, reason (why it stays dense), density and kept_magnitude
    (0 to 1), sparse_kernel (the library by which mpx.deploy could serve it 2:4 on this device) and
    sparse_kernel_reason (why none can).

    fmt: the number format of the run's matrix products on `device`.
    """
    rows = []
    for weight in masks.weights:
        values, pruned = weight.parameter.detach(), weight.name in masks.masks
        kernel, why = sparse_kernel(weight, masks.pattern, fmt, device) if pruned else (None, None)
        rows.append(
            {
                "name": weight.name,
                "type": weight.type,
                "shape": list(values.shape),
                "pruned": pruned,
                "reason": weight.reason if weight.reason or masks.active else NOT_YET,
                "density": float((values != 0).double().mean()),
                "kept_magnitude": _kept(masks, weight.name, values) if pruned else None,
                "sparse_kernel": kernel,
                "sparse_kernel_reason": why,
            }
        )
    return rows


def _kept(masks: Masks, name: str, values: torch.Tensor) -> float:
    """The share measured when the weight was pruned, or the current share if the masks change at every
    step.
    """
    if name in masks.kept:
        return masks.kept[name]
    kept, lost = float(values.abs().double().sum()), float(masks.stash[name].abs().double().sum())
    return kept / (kept + lost) if kept + lost else 1.0


def record(masks: Masks, recipe: str, *, fmt: str, device: torch.device) -> dict[str, Any]:
    """The sparsity part of result.json. fmt, device: as of `coverage`."""
    layers = coverage(masks, fmt=fmt, device=device)
    pruned = [row for row in layers if row["pruned"]]
    dense_share = weighted(layers, "density")
    return {
        "pattern": masks.pattern.name,
        "backend": masks.pattern.backend,
        "recipe": recipe,
        "verified": masks.complete and not masks.verify(),
        "density": weighted(pruned, "density"),
        "pruned_share": None if dense_share is None else 1 - dense_share,
        "kept_magnitude": weighted(pruned, "kept_magnitude"),
        "layers": layers,
    }


def weighted(rows: list[dict[str, Any]], key: str) -> float | None:
    """Mean of `key` over the rows, weighted by each layer's number of weights; None without rows."""
    sizes = [torch.Size(row["shape"]).numel() for row in rows]
    return sum(row[key] * size for row, size in zip(rows, sizes, strict=True)) / sum(sizes) if rows else None


@torch.no_grad()
def sensitivity(masks: Masks, loss: Callable[[], float]) -> list[dict[str, Any]]:
    """One row per layer to prune, the most sensitive first. The weights are unchanged on return.

    loss: returns the loss of the model with its current weights. A row has name, type, shape, kept_magnitude
    (0 to 1), dense_loss (nothing pruned), loss and loss_change.
    """
    dense = loss()
    rows = []
    for weight in masks.pruned:
        values, mask = weight.parameter, masks.pattern.mask(weight.parameter)
        before = values.clone()
        values.masked_fill_(~mask, 0)
        pruned = loss()
        values.copy_(before)
        row = {
            "name": weight.name,
            "type": weight.type,
            "shape": list(values.shape),
            "kept_magnitude": kept_magnitude(values, mask),
        }
        rows.append(row | {"dense_loss": dense, "loss": pruned, "loss_change": pruned - dense})
    return sorted(rows, key=lambda row: -row["loss_change"])
