"""Batches made by worker processes, moved to the device and finished there by the same code as resident ones."""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from mpx.errors import UserError
from mpx.machine import usable_cores


class Batches(Dataset):
    """Runs in a worker: the key (epoch, indices) gives the raw batch (x, y, rows).

    The sampler sends the epoch along, so a sample's random choices do not depend on the worker or on how many there are.
    """

    def __init__(self, split, seed: int):
        self.split, self.seed = split, seed
        self.planned = None  # (epoch, plan), made once per worker and epoch

    def __getitem__(self, key: tuple[int, Tensor]):
        epoch, index = key
        if self.planned is None or self.planned[0] != epoch:
            self.planned = (epoch, self.split.plan(self.seed, epoch))
        plan = self.planned[1]
        rows = None if plan is None else plan[index]
        try:
            return (*self.split.raw(index, rows), rows)
        except UserError as error:  # raised in a worker it would arrive wrapped in a traceback: hand it over instead
            return error


class Keys(Sampler):
    """The keys of one pass, set before the pass starts."""

    def __init__(self):
        self.keys: list[tuple[int, Tensor]] = []

    def __iter__(self):
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class WorkerReader:
    """A DataLoader with persistent workers behind the same interface as ResidentReader."""

    def __init__(self, split, seed: int, device: torch.device, workers: int | str):
        workers = min(usable_cores(), 8) if workers == "auto" else workers
        self.split, self.device, self.keys = split, device, Keys()
        self.loader = DataLoader(
            Batches(split, seed),
            batch_size=None,  # a key is a whole batch
            sampler=self.keys,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # a DataLoader draws from the global generator otherwise, and dropout would differ
        )

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """One finished (x, y) on the device per entry of `indices` (int64 [B] each). Raises UserError from a worker."""
        self.keys.keys = [(epoch, index) for index in indices]
        for batch in self._start():
            if isinstance(batch, UserError):
                raise batch
            x, y, rows = (None if t is None else t.to(self.device, non_blocking=True) for t in batch)
            yield self.split.finish(x, y, rows)

    def _start(self) -> Iterator:
        with warnings.catch_warnings():  # Python 3.12 warns of fork beside threads; the workers touch neither OpenMP nor CUDA
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            return iter(self.loader)

    def close(self) -> None:
        """Stop the worker processes; the next pass would start new ones.

        Done at once, as Lightning does it: an iterator that waits for garbage collection beside newer workers can take
        5 s a worker to stop.
        """
        if self.loader._iterator is not None:
            self.loader._iterator._shutdown_workers()
            self.loader._iterator = None
