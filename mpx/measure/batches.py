"""Count the samples of a batch."""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

Shapes = frozenset[tuple[int, ...]]
PLAIN = (str, int, float)
UNCOUNTED = (
    "how many samples a batch has is unknown: its tensors differ in their first dimension, or lie in lists. "
    "mpx.Throughput(samples=FUNCTION) counts them"
)


def samples_in(batch: Any) -> int | None:
    """The first dimension of the tensors in `batch`: a tensor, or a mapping, list, tuple or dataclass of
    tensors.

    None if the tensors differ in it, as images of several sizes and their boxes do, or if all lie in lists
    within the batch, whose items may be single samples.
    """
    lengths = {tensor.size(0) for tensor in tensors(batch)}
    return lengths.pop() if len(lengths) == 1 and any(True for _ in _of_all_samples(batch)) else None


def shapes_in(batch: Any, samples: int | None) -> Shapes:
    """The shapes of one sample's tensors. If they differ between batches, so do the FLOPs per sample. A
    tensor whose first dimension is not the samples counts as a whole.
    """
    return frozenset(
        tensor.shape[1:] if tensor.size(0) == samples else tensor.shape for tensor in tensors(batch)
    )


def tensors(batch: Any) -> Iterator[Tensor]:
    """The tensors with dimensions in any nesting of mappings, lists, tuples and dataclasses. Lists of texts
    or numbers are skipped.
    """
    if isinstance(batch, Tensor):
        if batch.dim():
            yield batch
        return
    if isinstance(batch, list | tuple):
        parts = () if batch and isinstance(batch[0], PLAIN) and isinstance(batch[-1], PLAIN) else batch
    else:
        parts = _values(batch)
    for part in parts:
        yield from tensors(part)


def _of_all_samples(batch: Any) -> Iterator[Tensor]:
    """The tensors that do not lie in a list within the batch."""
    if isinstance(batch, Tensor):
        yield from tensors(batch)
    elif isinstance(batch, list | tuple):
        yield from tensors([part for part in batch if isinstance(part, Tensor)])
    else:
        for part in _values(batch):
            if not isinstance(part, list | tuple):
                yield from _of_all_samples(part)


def _values(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return batch.values()
    return vars(batch).values() if is_dataclass(batch) else ()
