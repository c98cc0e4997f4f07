"""How many samples a batch has, whatever its form."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

from mpx.errors import UserError


def samples_in(batch: Any) -> int:
    """The length of the first tensor in `batch`: a tensor, or any nesting of mappings, lists, tuples and dataclasses.

    Raises UserError for a batch without a tensor that has dimensions.
    """
    if (found := _length(batch)) is None:
        raise UserError(
            f"mpx.Throughput: a batch of type {type(batch).__name__} has no tensor whose first dimension could be the samples. "
            "Give mpx.Throughput(samples=FUNCTION), which takes a batch and returns their number."
        )
    return found


def _length(batch: Any) -> int | None:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    elif is_dataclass(batch) or hasattr(batch, "__dict__"):
        parts = vars(batch).values()
    else:
        return None
    return next((found for part in parts if (found := _length(part)) is not None), None)
