"""The order of samples and their random choices: functions of a few integers, computed on the CPU and
therefore equal on every device.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import numpy as np
import torch
from torch import Tensor

SPLIT_SEED = 0  # fixed, so that `seed=` never moves a sample from one split to another


def generator(*parts: int | str) -> torch.Generator:
    """A new generator, seeded by `parts`, e.g. `generator(seed, "order", epoch)`. The global generator does
    not change.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the generators of torch, numpy and Python begin with `seed`; after it they are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed the GPU's too, which draws dropout masks
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def stratified_order(labels: Tensor, seed: int | None) -> Tensor:
    """An order of all samples, int64 [N], in which every slice has each class in proportion, to within one or
    two samples.

    The r-th of a class's n samples is placed at (r + ½)/n, so that all classes advance together.
    labels: [N]. seed: shuffles within the classes; None keeps the order of the file.
    """
    start = (
        torch.arange(len(labels))
        if seed is None
        else torch.randperm(len(labels), generator=generator(seed, "split"))
    )
    by_class = start[torch.sort(labels[start], stable=True).indices]
    counts = torch.bincount(labels)
    counts = counts[counts > 0]
    place = torch.cat([(torch.arange(n, dtype=torch.float64) + 0.5) / n for n in counts.tolist()])
    return by_class[torch.sort(place, stable=True).indices]


def hold_out(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(train, held out): int64 indices in the order of the file; `count` samples at the end of a stratified
    order are held out.
    """
    order = stratified_order(labels, seed=None)
    return order[: len(order) - count].sort().values, order[len(order) - count :].sort().values


def train_steps(count: int, size: int, seed: int, epoch: int) -> list[Tensor]:
    """The samples of each step of an epoch, on all ranks together: int64 [size] each, which is batch size ×
    ranks. Rank r takes every (number of ranks)-th of them from number r on.
    """
    order = torch.randperm(count, generator=generator(seed, "order", epoch))
    steps = count // size
    return list(order[: steps * size].split(size)) if steps else []


def eval_batches(count: int, batch_size: int, rank: int, world: int) -> list[Tensor]:
    """This rank's batches of sample indices, in order, int64 [<= B] each. Every sample comes exactly once
    over all ranks.

    A rank that would end one batch early splits its last batch: DistributedDataParallel broadcasts batch-norm
    buffers in every forward pass, so ranks with different numbers of batches would deadlock. A batch of one
    sample cannot be split; there the ranks with one sample more take two of them at once.
    """
    mine = torch.arange(count)[rank::world]
    if len(mine) == 0:
        return []
    if batch_size == 1:
        return list(mine.tensor_split(max(1, count // world)))
    batches = list(mine.split(batch_size))
    if len(batches) < ceil(ceil(count / world) / batch_size):
        batches[-1:] = [batches[-1][:-1], batches[-1][-1:]]
    return batches
