"""Batches of a split: from the device that holds all of it, from worker processes, or decoded on the device.

All finish a batch on the device by the same code (splits.py).
"""

import signal
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mpx.data.decoding import decode_on, read
from mpx.errors import UserError
from mpx.private.torch_modules import stop_workers
from mpx.system.launch import launch
from mpx.system.machine import TOLD_TO_GO, cpu_threads, usable_cores

MOST = 16  # processes
AHEAD = 3  # batches that are decoded before they are asked for
MEASURED_S, MEASURED_BATCH = 2.0, 64


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
        count = count_of(workers)
        self.split, self.device = split, device
        self.keys: list[tuple[int, Tensor]] = []  # of the batches of one pass, set before it starts
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
        self.keys[:] = [(epoch, index) for index in indices]
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


class DecodingReader:
    """Decodes image files on `device`, in a thread and on a stream of its own. keep: the decoded images stay
    there, so that each file is read once.
    """

    def __init__(self, split, seed: int, device: torch.device, *, keep: bool):
        self.split, self.seed, self.device, self.keep = split, seed, device, keep
        self.kept: dict[int, Tensor] = {}  # decoded images, uint8 [3, H, W] on the device
        # each reads a whole batch: a thread for each file would wait for Python's lock most of the time
        self.files = ThreadPoolExecutor(AHEAD)
        self.thread = ThreadPoolExecutor(1)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def batches(self, epoch: int, indices: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """One finished (x, y) on the device per entry of `indices` (int64 [B]); the first ones are begun in
        this call. Raises UserError for a file that cannot be read.
        """
        plan = self.split.plan(self.seed, epoch)
        begun = (self._begin(index, None if plan is None else plan[index]) for index in indices)
        return self._serve(deque(islice(begun, AHEAD)), begun)

    def _begin(self, index: Tensor, rows: Tensor | None) -> Future:
        """Read the files while those of the batches before are decoded."""
        paths = {i: self.split.paths[i] for i in index.tolist() if i not in self.kept}
        contents = self.files.submit(lambda: [read(path) for path in paths.values()])
        return self.thread.submit(self._make, index, rows, paths, contents)

    def _serve(self, ahead: deque[Future], begun: Iterator[Future]) -> Iterator[tuple[Tensor, Tensor]]:
        while ahead:
            x, y = ahead.popleft().result()
            ahead.extend(islice(begun, 1))
            if self.stream is not None:  # else their memory would serve the thread's stream too early
                for tensor in (x, y):
                    tensor.record_stream(torch.cuda.current_stream())
            yield self.split.finish(x, y, None)

    def _make(
        self, index: Tensor, rows: Tensor | None, paths: dict[int, str], contents: Future
    ) -> tuple[Tensor, Tensor]:
        with torch.cuda.stream(self.stream):
            images = decode_on(self.device, list(paths.values()), contents.result())
            decoded = dict(zip(paths, images, strict=True))
            if self.keep:
                self.kept |= decoded
            x = self.split.crop([decoded[i] if i in decoded else self.kept[i] for i in index.tolist()], rows)
            y = self.split.labels[index].to(self.device)
            if self.stream is not None:
                # the decoder, which has a stream of its own, may soon write into what is freed here
                self.stream.synchronize()
        return x, y

    def close(self) -> None:
        """End the threads and free the images."""
        self.thread.shutdown(cancel_futures=True)
        self.files.shutdown(cancel_futures=True)
        self.kept.clear()


Reader = ResidentReader | WorkerReader | DecodingReader


def reader_of(loader: str, split, seed: int, device: torch.device, workers: int | str) -> Reader:
    """loader: resident, workers or device, as data.loader."""
    if loader == "workers" or split.nbytes is None:  # a Dataset beside a user's tensors
        return WorkerReader(split, seed, device, workers)
    if split.on_disk:
        return DecodingReader(split, seed, device, keep=loader == "resident")
    return ResidentReader(split, seed, device)


def count_of(workers: int | str) -> int:
    """Processes that load for this process of a run. workers: data.workers."""
    return min(max(1, usable_cores() // launch().local_world), MOST) if workers == "auto" else int(workers)


def images_per_s(reader: Reader, order: Tensor) -> float:
    """How fast it gives the samples `order`, by the second half of the batches of about two seconds: what was
    made ahead while workers started comes in the first. Closes the reader.
    """
    arrived: list[float] = []
    try:
        for _ in reader.batches(0, list(order.split(MEASURED_BATCH))):
            arrived.append(time.perf_counter())
            if arrived[-1] - arrived[0] > MEASURED_S:
                break
    finally:
        reader.close()
    half = (len(arrived) - 1) // 2
    return MEASURED_BATCH * (len(arrived) - 1 - half) / (arrived[-1] - arrived[half])


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


def _ignore_signals(worker: int) -> None:
    """Slurm signals every process of a job. A worker ends with the training process, which first saves and
    needs batches.
    """
    for number in TOLD_TO_GO:
        signal.signal(number, signal.SIG_IGN)
