"""Which GPU a job of a sweep computes on: jobs that run at the same time spread over all of them.

A launcher's workers share no memory, so a claim is a file lock in the sweep's folder, which the operating system releases when its process
dies. CUDA is not asked, since that takes memory on every GPU and seconds of importing.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

VISIBLE = "CUDA_VISIBLE_DEVICES"


def installed() -> int:
    """GPUs in this machine; 0 where there is no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0


def visible_gpus(count: Callable[[], int] = installed) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name: the GPUs that the user has set there, else all of this machine, as "0", "1", …"""
    if (chosen := os.environ.get(VISIBLE)) is None:
        return [str(index) for index in range(count())]
    gpus = []
    for name in map(str.strip, chosen.split(",")):
        if not name or name.startswith("-"):  # CUDA ignores the rest too
            break
        gpus.append(name)
    return gpus


@contextmanager
def claimed(folder: Path, job: int, gpus: Sequence[str]) -> Iterator[str]:
    """Hold the one of `gpus` that the fewest running jobs hold. folder: where all jobs of the sweep keep their claims; job: its number."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "choosing.lock"):  # one after the other, so that no two jobs see the same GPU free
        index = min(range(len(gpus)), key=lambda index: _held(folder, index))
        claim = FileLock(folder / f"gpu{index}-job{job}.lock")
        claim.acquire()
    try:
        yield gpus[index]
    finally:
        claim.release()


def _held(folder: Path, index: int) -> int:
    """How many living processes hold a claim on GPU number `index`."""
    return sum(_locked(path) for path in folder.glob(f"gpu{index}-*.lock"))


def _locked(path: Path) -> bool:
    try:
        FileLock(path).acquire(timeout=0).lock.release()
    except Timeout:
        return True
    path.unlink(missing_ok=True)  # its job has ended
    return False
