"""Count the samples of a batch of any form."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from math import gcd
from numbers import Number
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from mpx.errors import UserError

PLAIN = (str, int, float)
UNLIKE = "samples differ in size between batches, such as texts of several lengths, and only the first batch's operations were counted"
SHARED = "several processes share samples, and only the first one's operations were counted"


def samples_in(batch: Any) -> int:
    """The length of the first tensor in `batch`: a tensor, or any nesting of mappings, lists, tuples and dataclasses.

    If the first tensor is in a list of samples, such as images of several sizes with a list of their boxes, the length of that list. If it
    is in a PackedSequence, the number of its sequences; and if the batch is itself a list of samples, as of collate_fn=list, their number.
    A batch of torch_geometric has as many samples as graphs.
    Raises UserError for a batch without a tensor that has dimensions.
    """
    if (found := _length(batch)) is None:
        raise UserError(
            f"mpx.Throughput: a batch of type {type(batch).__name__} has no tensor whose first dimension could be the samples. "
            "Give mpx.Throughput(samples=FUNCTION), which takes a batch and returns their number."
        )
    if isinstance(batch, list) and _are_samples(batch):
        return len(batch)
    parts = list(_parts(batch))
    first = next((part for part in parts if _length(part) is not None), None)
    if not _is_list(first) or not all(isinstance(item, Tensor) for item in first):
        return found
    if (samples := _certain(first)) is not None:
        return samples
    others = [_certain(part) for part in parts if part is not first]
    return len(first) if len(first) in others and found not in others else found


def usual_size(sizes: Mapping[int, int]) -> int | None:
    """The size of most batches; of two that are as common, the larger, since a last batch is smaller. None if no size has half of them, as
    where each batch has what fits: the most common one is then chance.

    sizes: size -> number of batches.
    """
    if not sizes:
        return None
    size = max(sizes, key=lambda size: (sizes[size], size))
    return size if 2 * sizes[size] >= sum(sizes.values()) else None


def sample_shapes(batch: Any) -> frozenset[tuple[int, ...]]:
    """The shapes of the tensors in `batch` without their first dimension. If they differ between batches, so do the FLOPs per sample."""
    found: set[tuple[int, ...]] = set()
    _add_shapes(batch, found)
    return frozenset(found)


def _add_shapes(part: Any, found: set[tuple[int, ...]]) -> None:
    """Runs in every step, so it skips lists of texts or numbers. It also skips other objects, which may contain themselves."""
    if isinstance(part, PackedSequence):
        tokens, sequences = len(part.data), _length(part)
        least = gcd(tokens, sequences)
        found.add((tokens // least, sequences // least, *part.data.shape[1:]))
    elif isinstance(part, Tensor):
        found.add(part.shape[1:])
    elif isinstance(part, list | tuple):
        if not part or not isinstance(part[0], PLAIN) or not isinstance(part[-1], PLAIN):
            for item in part:
                _add_shapes(item, found)
    elif isinstance(part, Mapping) or is_dataclass(part) or _graphs(part) is not None:
        for item in _parts(part):
            _add_shapes(item, found)


def _length(batch: Any) -> int | None:
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])  # which is on the CPU always
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    if (graphs := _graphs(batch)) is not None:
        return graphs
    return next((found for part in _parts(batch) if (found := _length(part)) is not None), None)


def _graphs(batch: Any) -> int | None:
    """The number of graphs in a batch of torch_geometric, whose tensors have the nodes and edges of all; None for other objects."""
    if not hasattr(type(batch), "num_graphs") and "num_graphs" not in getattr(batch, "__dict__", ()):
        return None  # a mapping that takes attributes for keys may raise KeyError
    return batch.num_graphs if type(batch.num_graphs) is int else None


def _parts(batch: Any) -> Iterable[Any]:
    """A tensor, a text or a number has none."""
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, list | tuple):
        return batch
    return () if isinstance(batch, Tensor) else getattr(batch, "__dict__", {}).values()


def _are_samples(items: list) -> bool:
    """Whether they certainly are single samples: of one type, which inputs and targets may not be, with a common key if they are mappings,
    and one of them certainly a sample."""
    if len(set(map(type, items))) > 1 or not (isinstance(items[0], Mapping) or _is_list(items[0])):
        return False
    if isinstance(items[0], Mapping) and not set.intersection(*(set(item.keys()) for item in items)):  # a TensorDict iterates over samples
        return False
    return any(map(_is_sample, items))


def _is_sample(part: Any) -> bool:
    """Whether it certainly is one sample, and no batch: it has a class beside its tensor, or is or has a mapping, and tensors of different
    lengths. A tuple with a mapping is one too, since PyTorch's collate function makes lists."""
    mapped, items = isinstance(part, Mapping) or any(isinstance(item, Mapping) for item in part), list(_leaves(part))
    if any(isinstance(item, Number) or (isinstance(item, Tensor) and not item.dim()) for item in items):
        return True
    return mapped and (isinstance(part, tuple) or len({len(item) for item in items if isinstance(item, Tensor)}) > 1)


def _leaves(part: Any) -> Iterator[Any]:
    """Its items, and in place of a mapping those within it."""
    for item in _parts(part):
        yield from _leaves(item) if isinstance(item, Mapping) else (item,)


def _is_list(part: Any) -> bool:
    return isinstance(part, list | tuple) and not isinstance(part, PackedSequence)


def _certain(part: Any) -> int | None:
    """The samples of a part of a batch; None if that is uncertain: a list of tensors of one length may be several views of one batch."""
    if not _is_list(part):
        return _length(part)
    if all(isinstance(item, Tensor) and item.dim() for item in part):
        return len(part) if len({len(item) for item in part}) > 1 else None
    return len(part) if all(isinstance(item, Mapping | str | Number) for item in part) else None
