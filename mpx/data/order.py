"""Which sample comes when: every order is a function of a few integers, computed on the CPU, the same on any device."""

import hashlib
from math import ceil

import torch
from torch import Tensor


def generator(*parts: int | str) -> torch.Generator:
    """A private generator seeded by `parts`, e.g. `generator(seed, "order", epoch)`; the global one is never touched."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def stratified_order(labels: Tensor, seed: int | None) -> Tensor:
    """An order of all samples in which every slice holds each class in its share, to within one sample or two.

    labels: [N]. seed None keeps the order of the file inside each class, otherwise it is shuffled. Returns int64 [N].
    Why: a class's r-th of n samples is put at (r + ½)/n, so all the classes advance together.
    """
    start = torch.arange(len(labels)) if seed is None else torch.randperm(len(labels), generator=generator(seed, "split"))
    by_class = start[torch.sort(labels[start], stable=True).indices]
    counts = torch.bincount(labels)
    counts = counts[counts > 0]
    place = torch.cat([(torch.arange(n, dtype=torch.float64) + 0.5) / n for n in counts.tolist()])
    return by_class[torch.sort(place, stable=True).indices]


def hold_out(labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(train, held out): the last `count` samples of a train set, stratified; both in the order of the file. int64 indices."""
    order = stratified_order(labels, seed=None)
    return order[: len(order) - count].sort().values, order[len(order) - count :].sort().values


def train_batches(count: int, batch_size: int, seed: int, epoch: int, rank: int = 0, world: int = 1) -> list[Tensor]:
    """This rank's batches of sample indices in one epoch: full ones only, equally many on every rank. List of int64 [B]."""
    order = torch.randperm(count, generator=generator(seed, "order", epoch))
    batches = count // world // batch_size
    return list(order[rank::world][: batches * batch_size].split(batch_size)) if batches else []


def eval_batches(count: int, batch_size: int, rank: int = 0, world: int = 1) -> list[Tensor]:
    """This rank's batches of every sample exactly once, in order; the last may be short. List of int64 [<= B].

    A rank that would end one batch early splits its last batch: DistributedDataParallel broadcasts batch-norm buffers in
    every forward pass, so ranks with different numbers of batches would wait for each other for ever.
    """
    mine = torch.arange(count)[rank::world]
    batches = list(mine.split(batch_size)) if len(mine) else []
    longest = ceil(ceil(count / world) / batch_size)
    if batches and len(batches) < longest and len(batches[-1]) > 1:
        last = batches.pop()
        batches += [last[:-1], last[-1:]]
    return batches
