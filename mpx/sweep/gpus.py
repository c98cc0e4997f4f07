"""Choose the GPU of a sweep's job, so that jobs that run at the same time spread over all GPUs.

A claim is a file lock in the sweep's folder, since submitit's workers share no memory. The operating system releases it when the process
dies. Each lock is of one opened file (flock), so the threads of one process exclude one another as well.
GPUs are counted by NVML, because CUDA would take memory on every GPU and seconds of importing.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from mpx.environment_variables import VISIBLE
from mpx.runs.folder import is_locked


def installed() -> int:
    """The number of GPUs in this machine; 0 without an NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0


def visible_gpus(environment: Mapping[str, str] = os.environ, count: Callable[[], int] = installed) -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES of `environment`; without it, all GPUs of this machine, as "0", "1", …"""
    if (chosen := environment.get(VISIBLE)) is None:
        return [str(index) for index in range(count())]
    gpus = []
    for name in map(str.strip, chosen.split(",")):
        if not name or name.startswith("-"):  # CUDA ignores the rest as well
            break
        gpus.append(name)
    return gpus


@contextmanager
def claimed(folder: Path, job: int, gpus: Sequence[str]) -> Iterator[str]:
    """Claim the GPU of `gpus` with the fewest running jobs. folder: for all claims of the sweep. job: the job's number."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "choosing.lock"):  # one job at a time, so that no two jobs see the same GPU free
        index = min(range(len(gpus)), key=lambda index: _held(folder, index))
        claim = FileLock(folder / f"gpu{index}-job{job}.lock")
        claim.acquire()
    try:
        yield gpus[index]
    finally:
        claim.release()


def _held(folder: Path, index: int) -> int:
    """The number of running jobs on GPU number `index`."""
    return sum(_locked(path) for path in folder.glob(f"gpu{index}-*.lock"))


def _locked(path: Path) -> bool:
    if is_locked(path):
        return True
    path.unlink(missing_ok=True)  # its job has ended
    return False
