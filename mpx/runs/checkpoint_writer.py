"""Checkpoints are written beside the training: it goes on as soon as they are copied, while a thread puts them on the disk.

ResNet-18 at batch 256 on an H200 took 0.85 s an epoch, and writing its 90 MB as best.ckpt and last.ckpt before going on 0.5 to 2 s more.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import copy as shallow
from pathlib import Path
from shutil import copyfile
from threading import Event, Thread
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from torch import Tensor

PART = ".part"  # how the name of a file that is being written ends
# Seconds before the thread begins: pickling holds Python's lock, which an epoch's first steps need more. ResNet-18 on an H200, batches of
# 512: 45 ms from validation to the next epoch's first step with a thread that began at once, 14 with none; now 9 either way.
HEAD_START = 0.05
Key = tuple[int, torch.dtype, torch.Size, tuple[int, ...], torch.device]


class CheckpointWriter(TorchCheckpointIO):
    """One checkpoint at a time: whoever saves again waits for the one before. What failed in the thread is raised by the next
    `save_checkpoint` or `wait`. A file appears whole or not at all, also when the power fails."""

    def __init__(self) -> None:
        self._done: Event | None = None  # set when all that was started is over
        self._wanted = Event()  # set when somebody waits for it
        self._error: BaseException | None = None
        self._pinned: dict[Key, Tensor] = {}  # the copies on the host of what lies on a device, used again

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        self.wait()
        copied = self._copy(checkpoint)
        arrived = torch.cuda.Event() if self._pinned else None
        if arrived is not None:
            arrived.record()

        wanted = self._wanted = Event()

        def write(beside: Path) -> None:
            wanted.wait(HEAD_START)
            if arrived is not None:
                arrived.synchronize()
            _save(copied, beside)

        self._start(write, Path(path))

    def link(self, path: Path, to: Path) -> None:
        """`path` is to hold the same as `to`, which was saved before: one file with two names where the file system can."""
        self._start(lambda beside: _link(to, beside), path)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.wait()
        return super().load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, path: str | Path) -> None:
        self.wait()
        super().remove_checkpoint(path)

    def wait(self) -> None:
        """Until everything is on the disk. Raises what went wrong there."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def teardown(self) -> None:
        """Lightning's, also after a failure, which is then not to be hidden by another: one that is left here is only printed."""
        self._join()
        if self._error is not None:
            print(f"the newest checkpoint was not written ({self._error}); the one before it is whole", file=sys.stderr)

    def _join(self) -> None:
        """Not by Thread.join: interrupted by Ctrl-C, it takes the thread to be over (Python 3.11, 3.12)."""
        if self._done is not None:
            self._wanted.set()
            self._done.wait()
            self._done = None

    def _start(self, write: Callable[[Path], None], path: Path) -> None:
        done = Event()
        Thread(target=self._run, args=(write, path, self._done, done), name="checkpoint").start()
        self._done = done

    def _run(self, write: Callable[[Path], None], path: Path, earlier: Event | None, done: Event) -> None:
        try:
            if earlier is not None:
                earlier.wait()
            if self._error is None:
                _write_beside(write, path)
        except BaseException as error:
            self._error = error
        finally:
            done.set()

    def _copy(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Its tensors on the host, which the next training step will not change. Tensors that are one memory stay one, as tied weights.

        Those of a device are on their way there when this returns. What training does next is queued behind, on the same stream.
        """
        copies: dict[Key, Tensor] = {}

        def copy(value: Tensor) -> Tensor:
            key = value.data_ptr(), value.dtype, value.shape, value.stride(), value.device
            if key not in copies:
                copies[key] = self._to_host(value, key) if value.is_cuda else value.detach().clone()
            return copies[key]

        copied = _with_tensors(checkpoint, copy)
        self._pinned = {key: value for key, value in copies.items() if key[-1].type == "cuda"}
        return copied

    def _to_host(self, value: Tensor, key: Key) -> Tensor:
        """Into memory from which the device copies at full speed; it takes long to allocate."""
        place = self._pinned.get(key)
        if place is None:
            place = torch.empty_like(value, device="cpu", pin_memory=True)
        return place.copy_(value.detach(), non_blocking=True)


def _with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor in its dicts, lists and tuples changed; the containers are new ones."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        copied = shallow(value)  # of its own kind and with its attributes: a state_dict has the versions of its modules
        for key, item in value.items():
            copied[key] = _with_tensors(item, change)
        return copied
    if type(value) in (list, tuple):
        return type(value)([_with_tensors(item, change) for item in value])
    return value


def _write_beside(write: Callable[[Path], None], path: Path) -> None:
    """One file at a time is written in a run's folder, which is locked: parts that lie there are of a process that was killed. They go
    first, since one may be a second name of a whole checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".*{PART}"):
        left.unlink()
    beside = path.with_name(f".{path.name}{PART}")
    try:
        write(beside)
        os.replace(beside, path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _save(checkpoint: dict[str, Any], path: Path) -> None:
    with open(path, "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())


def _link(to: Path, path: Path) -> None:
    try:
        os.link(to, path)
    except OSError:  # a file system without hard links
        copyfile(to, path)
