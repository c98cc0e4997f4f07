"""Batches from worker processes. They are moved to the device and finished there by the same code as resident batches."""

import signal
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from mpx.errors import UserError
from mpx.machine import TOLD_TO_GO, usable_cores
from mpx.private.torch_modules import stop_workers


class Batches(Dataset):
    """Runs in a worker and maps a key (epoch, indices) to a raw batch (x, y, rows).

    The key holds the epoch, so that a sample's random choices do not depend on the worker or on the number of workers.
    """

    def __init__(self, split, seed: int):
        self.split, self.seed = split, seed
        self.planned = None  # (epoch, plan); each worker plans once per epoch

    def __getitem__(self, key: tuple[int, Tensor]):
        epoch, index = key
        if self.planned is None or self.planned[0] != epoch:
            self.planned = (epoch, self.split.plan(self.seed, epoch))
        plan = self.planned[1]
        rows = None if plan is None else plan[index]
        try:
            return (*self.split.raw(index, rows), rows)
        except UserError as error:  # returned, because a raised exception arrives wrapped in a traceback
            return error


class Keys(Sampler):
    """The keys of one pass, which are set before it starts."""

    def __init__(self):
        self.keys: list[tuple[int, Tensor]] = []

    def __iter__(self):
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


def _stay(worker: int) -> None:
    """Slurm tells every process of a job to go. This one ends with the training process, which first saves and needs batches until then."""
    for number in TOLD_TO_GO:
        signal.signal(number, signal.SIG_IGN)


class WorkerReader:
    """A DataLoader with persistent workers, with the interface of ResidentReader."""

    def __init__(self, split, seed: int, device: torch.device, workers: int | str):
        workers = min(usable_cores(), 8) if workers == "auto" else workers
        self.split, self.device, self.keys = split, device, Keys()
        self.loader = DataLoader(
            Batches(split, seed),
            batch_size=None,  # a key is a whole batch
            sampler=self.keys,
            num_workers=workers,
            worker_init_fn=_stay,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # without one, a DataLoader draws from the global generator, which would change dropout
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
        with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads, but the workers use neither OpenMP nor CUDA
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            return iter(self.loader)

    def close(self) -> None:
        """Stop the worker processes; the next pass would start new ones."""
        stop_workers(self.loader)
