"""Write checkpoints in a thread: training goes on as soon as their tensors are copied.

Lightning's AsyncCheckpointIO does not replace this. It clones the tensors on the device, so the recorded peak memory would grow by a
whole checkpoint (1.2 GiB for BERT-base with AdamW: 110 M parameters × 3 × 4 bytes). It saves tied weights twice, drops the module
versions of a state_dict, and has no call that waits for the file.
"""

import os
import sys
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from copy import copy as shallow
from pathlib import Path
from shutil import copyfile
from threading import Event
from typing import Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO
from torch import Tensor

from mpx.runs import signals
from mpx.runs.folder import PART

# Seconds before the thread begins. Pickling holds Python's lock, which the next epoch's first steps need (experiments/speed/README.md).
HEAD_START = 0.05
Key = tuple[int, torch.dtype, torch.Size, tuple[int, ...], torch.device]


class CheckpointWriter(TorchCheckpointIO):
    """Writes one checkpoint at a time: saving waits for the checkpoint before. The next `save_checkpoint` or `wait` raises an error of the
    thread. A file appears whole or not at all, also after a power failure."""

    def __init__(self) -> None:
        self._thread = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: list[futures.Future[None]] = []
        self._wanted = Event()  # set as soon as somebody waits for the checkpoint, which ends its head start
        self._stream: torch.cuda.Stream | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        self.wait()
        copied, arrived = self._copied(checkpoint)
        wanted = self._wanted = Event()

        def write(beside: Path) -> None:
            wanted.wait(HEAD_START)
            if arrived is not None:
                arrived.synchronize()
            _save(copied, beside)

        self._submit(write, Path(path))

    def _copied(self, checkpoint: dict[str, Any]) -> tuple[dict[str, Any], torch.cuda.Event | None]:
        """The checkpoint on the host, and the event after which the copies of device tensors have arrived there.

        They have a stream of their own, for which training waits. PyTorch records an event on the stream of a pinned copy when the thread
        frees it. On the stream where a step is being recorded, that event would belong to a CUDA graph, and asking for it would raise an
        error at the next pinned memory that somebody needs. The stream has another priority than those of steps, since PyTorch hands out
        the same 32 streams of each priority again and again.
        """
        if not torch.cuda.is_initialized():
            return _on_host(checkpoint), None
        training = torch.cuda.current_stream()
        self._stream = self._stream or torch.cuda.Stream(priority=-1)
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            copied = _on_host(checkpoint)
        arrived = self._stream.record_event()
        training.wait_event(arrived)
        return copied, arrived

    def link(self, path: Path, to: Path) -> None:
        """Give the newest saved file `to` the second name `path`, or copy it where the file system has no hard links."""
        self._submit(lambda beside: _link(to, beside), path)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.wait()
        return super().load_checkpoint(*args, **kwargs)

    def remove_checkpoint(self, path: str | Path) -> None:
        self.wait()
        super().remove_checkpoint(path)

    def wait(self) -> None:
        """Return when everything is on the disk. Raises the first error of the thread."""
        self._finish()
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()

    def teardown(self) -> None:
        """Lightning calls this after a failure too, which another exception would hide: an error here is only printed."""
        self._finish()
        if (error := _first_error(self._pending)) is not None:
            print(f"the newest checkpoint was not written ({error}); the one before it is whole", file=sys.stderr)

    def _finish(self) -> None:
        self._wanted.set()
        futures.wait(self._pending)

    def _submit(self, write: Callable[[Path], None], path: Path) -> None:
        earlier = list(self._pending)

        def run() -> None:
            if _first_error(earlier) is None:  # else a link would lead to an older checkpoint
                _write_beside(write, path)

        with signals.held():  # Ctrl-C while the pool starts its thread would leave one that Python waits for at its end
            self._pending.append(self._thread.submit(run))


def _on_host(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint with its tensors on the host, where the next training step does not change them. Tied weights stay one tensor.

    The copies of device tensors are queued on the current stream when this returns. They go to pinned memory, the only kind that a device
    copies to asynchronously. PyTorch keeps it for the next checkpoint.
    """
    copies: dict[Key, Tensor] = {}

    def copy(value: Tensor) -> Tensor:
        key = value.data_ptr(), value.dtype, value.shape, value.stride(), value.device
        if key not in copies:
            value = value.detach()
            copies[key] = value.to("cpu", non_blocking=True) if value.is_cuda else value.clone()
        return copies[key]

    return _with_tensors(checkpoint, copy)


def _first_error(done: list[futures.Future[None]]) -> BaseException | None:
    return next((error for future in done if (error := future.exception()) is not None), None)


def _with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` in new containers, with every tensor in its dicts, lists and tuples changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        copied = shallow(value)  # keeps its class and its attributes, such as the module versions of a state_dict
        for key, item in value.items():
            copied[key] = _with_tensors(item, change)
        return copied
    if type(value) in (list, tuple):
        return type(value)([_with_tensors(item, change) for item in value])
    return value


def _write_beside(write: Callable[[Path], None], path: Path) -> None:
    """Write a temporary file, then rename it to `path`. Only one process writes here, because a run's folder is locked.

    Temporary files of a killed process are removed first: one of them may be a second name of a whole checkpoint.
    """
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
