"""Batches of a split: from the device that holds all of it, or from worker processes.

Both finish a batch on the device by the same code (splits.py).
"""

import signal
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from mpx.errors import UserError
from mpx.private.torch_modules import stop_workers
from mpx.system.machine import TOLD_TO_GO, cpu_threads, usable_cores


class ResidentReader:
    """Keeps the split on `device` and cuts batches there: no worker processes, and no copies to wait for."""

    def __init__(self, split, seed: int, device: torch.device):
        self.split, self.seed, self.device = split.to(device), seed, device

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """One finished (x, y) on the device per entry of `indices` (int64 [B], on the CPU).

        All random choices are made in this call.
        """
        if not indices:
            return iter(())
        with cpu_threads(1):  # too little work for several threads
            plan, order = self.split.plan(self.seed, epoch), torch.cat(indices)
        plan = None if plan is None else self._send(plan)
        order = self._send(order)  # one copy per epoch instead of one per batch
        return self._cut(order.split([len(i) for i in indices]), plan)

    def _cut(self, indices: tuple[Tensor, ...], plan: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        for index in indices:
            rows = None if plan is None else plan[index]
            yield self.split.finish(*self.split.raw(index, rows), rows)

    def _send(self, values: Tensor) -> Tensor:
        """Copy to the device without waiting, so that evaluation is queued while the last training steps
        still run.
        """
        if self.device.type == "cuda":
            return values.pin_memory().to(self.device, non_blocking=True)
        return values.to(self.device)

    def close(self) -> None:
        """There is nothing to stop."""


class WorkerReader:
    """A DataLoader with persistent workers, with the interface of ResidentReader."""

    def __init__(self, split, seed: int, device: torch.device, workers: int | str):
        count = min(usable_cores(), 8) if workers == "auto" else int(workers)
        self.split, self.device, self.keys = split, device, Keys()
        self.loader: DataLoader = DataLoader(
            Batches(split, seed),
            batch_size=None,  # a key is a whole batch
            sampler=self.keys,
            num_workers=count,
            worker_init_fn=_ignore_signals,
            persistent_workers=count > 0,
            pin_memory=device.type == "cuda",
            # the default draws from the global generator, which would change dropout
            generator=torch.Generator(),
        )

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """One finished (x, y) on the device per entry of `indices` (int64 [B]). Raises UserError from a
        worker.
        """
        self.keys.keys = [(epoch, index) for index in indices]
        for batch in self._start():
            if isinstance(batch, UserError):
                raise batch
            x, y, rows = (None if t is None else t.to(self.device, non_blocking=True) for t in batch)
            yield self.split.finish(x, y, rows)

    def _start(self) -> Iterator:
        # Python 3.12 warns of forks beside threads; workers use neither OpenMP nor CUDA
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning
            )
            return iter(self.loader)

    def close(self) -> None:
        """Stop the worker processes; the next pass would start new ones."""
        stop_workers(self.loader)


class Batches(Dataset):
    """Runs in a worker and maps a key (epoch, indices) to a raw batch (x, y, rows).

    The key holds the epoch, so that a sample's random choices do not depend on the worker or on their number.
    """

    def __init__(self, split, seed: int):
        self.split, self.seed = split, seed
        # (epoch, plan); each worker plans once per epoch
        self.planned: tuple[int, Tensor | None] | None = None

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


def _ignore_signals(worker: int) -> None:
    """Slurm signals every process of a job. A worker ends with the training process, which first saves and
    needs batches.
    """
    for number in TOLD_TO_GO:
        signal.signal(number, signal.SIG_IGN)
