"""Texts of similar length in one batch, so that few of its tokens are padding.

An epoch's order is cut into windows of batches, each window is sorted by length, and its batches are
shuffled. A batch is as long as its longest text, rounded up to one of a few lengths, because each length has
a CUDA graph and a compilation of its own. transformers' `group_by_length` does the same without the rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mpx.data.order import generator, train_steps
from mpx.data.splits import Data, Texts
from mpx.errors import UserError

MOST = 6  # lengths that `auto` chooses
STEP = 8  # tokens: lengths are multiples of it, as Tensor Cores need
CANDIDATES = 64  # lengths that `auto` chooses from
WINDOW = 50  # batches that are sorted together


@dataclass(frozen=True)
class Lengths:
    """The lengths to which the batches of a split are cut.

    tokens: of each text, int64 [N]. allowed: ascending; the last one is at least the longest text.
    """

    tokens: Tensor
    allowed: tuple[int, ...]

    def train_steps(self, size: int, seed: int, epoch: int) -> list[Tensor]:
        """Those of order.py, with the samples of each window grouped by length. All ranks share a step's
        length.
        """
        steps = train_steps(len(self.tokens), size, seed, epoch)
        if len(self.allowed) == 1:
            return steps
        draw, grouped = generator(seed, "lengths", epoch), []
        for first in range(0, len(steps), WINDOW):
            window = torch.cat(steps[first : first + WINDOW])
            by_length = window[torch.sort(self.tokens[window], stable=True).indices].split(size)
            grouped += [by_length[place] for place in torch.randperm(len(by_length), generator=draw)]
        return grouped

    def of(self, batch: Tensor) -> int:
        """The length of a batch of samples, int64 [B]."""
        longest = int(self.tokens[batch].max())
        return next(length for length in self.allowed if length >= longest)

    def padding_fraction(self, batches: list[Tensor]) -> float:
        """The share of the tokens of `batches` that is padding."""
        tokens = sum(len(batch) * self.of(batch) for batch in batches)
        return 1 - int(self.tokens[torch.cat(batches)].sum()) / tokens

    def cut(self, batches: Iterator[tuple[Tensor, Tensor]], indices: Sequence[Tensor]) -> Iterator[Any]:
        """The same batches, each as long as the samples of its `indices` need."""
        for (x, y), index in zip(batches, indices, strict=True):
            length = self.of(index)
            of_tokens = y.dim() == 2 and not y.is_floating_point()  # a class for each token
            yield x[:, :length].contiguous(), y[:, :length].contiguous() if of_tokens else y


def lengths_of(data: Data, wanted: str | Sequence[int]) -> dict[str, Lengths]:
    """The lengths of each split of texts that are padded at their end; {} for other data.

    wanted: data.lengths. Raises UserError for a list that is too short for the texts.
    """
    spec = data.spec
    if not isinstance(data.train, Texts) or spec.pad_id is None:
        return {}
    tokens = {name: tokens_of(split.ids, spec.pad_id) for name, split in data.splits.items()}
    needed, (longest,) = max(int(of_split.max()) for of_split in tokens.values()), spec.shape
    if wanted == "fixed":
        allowed: tuple[int, ...] = (longest,)
    elif wanted == "auto":
        allowed = chosen_lengths(tokens["train"], needed, longest)
    else:
        allowed = tuple(sorted({int(length) for length in wanted}))
    if not needed <= allowed[-1] <= longest:
        raise UserError(
            f"data.lengths={list(allowed)} must end with a length from {needed}, the tokens of the longest "
            f"text, to data.seq_len={longest}. For example data.lengths=auto."
        )
    return {name: Lengths(of_split, allowed) for name, of_split in tokens.items()}


def chosen_lengths(tokens: Tensor, needed: int, longest: int) -> tuple[int, ...]:
    """At most MOST multiples of STEP, by which the texts are padded with few tokens.

    It begins with many lengths, and removes the one without which the fewest tokens of padding are added: as
    long as there are too many, or the padding stays the same.
    """
    step = STEP * max(1, -(-needed // (STEP * CANDIDATES)))
    allowed = [*range(step, needed, step), min(-(-needed // step) * step, longest)]
    texts = torch.bincount(torch.bucketize(tokens, torch.tensor(allowed)), minlength=len(allowed)).tolist()
    while len(allowed) > 1:
        added = [texts[place] * (allowed[place + 1] - allowed[place]) for place in range(len(allowed) - 1)]
        if len(allowed) <= MOST and min(added) > 0:
            break
        place = added.index(min(added))
        allowed.pop(place)
        moved = texts.pop(place)
        texts[place] += moved
    return tuple(allowed)


def tokens_of(ids: Tensor, pad_id: int) -> Tensor:
    """The tokens of each text up to its last one that is not padding, at least 1: int64 [N] of [N, T]."""
    places = torch.arange(1, ids.shape[1] + 1, dtype=torch.int32)
    return ((ids != pad_id) * places).amax(1).clamp(min=1).long()
