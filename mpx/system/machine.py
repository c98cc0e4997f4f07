"""What this machine offers a process: cores, threads, memory and a compiler for kernels; signals to end; how
PyTorch is imported.

Imports nothing heavy.
"""

import gc
import itertools
import math
import os
import shutil
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mpx.errors import UserError
from mpx.system.environment_variables import VISIBLE

# A cluster sends one of these to all processes of a job that must go: preemption, or the end of its time.
TOLD_TO_GO = (signal.SIGTERM, *((signal.SIGUSR1, signal.SIGUSR2) if sys.platform != "win32" else ()))
GIB = 2**30  # bytes
# Linux limits a group of processes, as containers, Slurm and systemd use it; a limit holds for the groups
# below it, too. In version 1 each controller has groups of its own. Sources: docs.kernel.org,
# admin-guide/cgroup-v2, admin-guide/cgroup-v1/memory, scheduler/sched-bwc.
MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# GNU OpenMP's variable: how often a CPU thread of PyTorch looks for work before it sleeps. By default it
# looks 300,000 times, and beside other programs takes the core from the thread that it waits for
# (experiments/cpu_threads).
SPINS = ("GOMP_SPINCOUNT", "1000")


def usable_cores() -> int:
    """Number of cores that this process may use.

    A container or Slurm may give fewer than the machine has, or part of all cores' time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else min(cores, math.ceil(quota))


def installed_gpus() -> int:
    """The number of GPUs in this machine; 0 without an NVIDIA driver.

    By NVML: CUDA would take memory on each, and seconds.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0


def visible_gpus(
    environment: Mapping[str, str] = os.environ, count: Callable[[], int] = installed_gpus
) -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES of `environment`; without it, all GPUs of this machine, as "0", "1",
    …
    """
    if (chosen := environment.get(VISIBLE)) is None:
        return [str(index) for index in range(count())]
    names = [name.strip() for name in chosen.split(",")]
    # CUDA ignores what follows an empty or negative name as well.
    return list(itertools.takewhile(lambda name: bool(name) and not name.startswith("-"), names))


def memory_bytes() -> int | None:
    """The RAM that this process may use, as a container or Slurm may limit it; None where the system does not
    say."""
    limit = memory_limit()
    try:
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return limit
    return installed if limit is None else min(installed, limit)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let PyTorch use `count` CPU threads.

    Small work is faster with few: it waits for the slowest thread where cores are busy.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def heavy() -> Iterator[None]:
    """The block imports PyTorch: without garbage collection, which takes a quarter of the time, and with CPU
    threads that wait briefly for one another. No later collection looks at what it makes, nor does the one at
    Python's end, which would take a second.

    Where PyTorch is there already this changes nothing, because the objects of a program that calls mpx are
    not mpx's to keep. Raises UserError as `check_compilers_cache`.
    """
    check_compilers_cache()
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    # unless the user has said how threads wait; OpenMP reads it when PyTorch is imported
    if not {SPINS[0], "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[SPINS[0]] = SPINS[1]
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def check_compilers_cache() -> None:
    """Make the folder that the user names for torch.compile's cache, as PyTorch does where Lightning imports
    its compiler.

    Raises UserError where that is impossible.
    """
    if folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"TORCHINDUCTOR_CACHE_DIR={folder}: PyTorch cannot make this folder for its compiler "
                f"({error.strerror}). Name another "
                "folder, or unset it."
            ) from error


def keep_within_quota(processes: int) -> None:
    """Where a container gives part of all cores' time, let PyTorch use as few CPU threads in each of
    `processes` processes.

    PyTorch and Lightning count cores, not their time, and threads that share the time of fewer cores wait for
    one another. Who has set a number of threads keeps it. By the environment variable Lightning passes the
    number on to the processes that it starts.
    """
    import torch

    if cpu_quota() is None or {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
        return
    threads = max(1, usable_cores() // processes)
    if threads < torch.get_num_threads():
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


@cache
def builds_kernels(device: str = "cuda") -> bool:
    """Whether this machine can build kernels for `device`, cuda or cpu.

    Triton builds its launchers in C and torch.compile on a CPU its kernels in C++. Both need a compiler and
    Python's header files, which slim images and systems without python3-dev lack. Sources:
    triton/runtime/build.py, torch/_inductor/cpp_builder.py.
    """
    variable, *compilers = ("CC", "gcc", "clang") if device == "cuda" else ("CXX", "g++", "clang++")
    compiler = os.environ.get(variable) or next(filter(None, map(shutil.which, compilers)), None)
    return compiler is not None and Path(sysconfig.get_config_var("INCLUDEPY") or "", "Python.h").is_file()


def memory_limit() -> int | None:
    """In bytes; None where there is none. Version 1 has a number far above any machine's memory for none."""
    files = [group / "memory.max" for group in _groups("")] + [
        group / "memory.limit_in_bytes" for group in _groups("memory")
    ]
    return min((int(limit) for limit in map(_text, files) if limit.isdecimal()), default=None)


def cpu_quota() -> float | None:
    """The cores whose whole time the processes may take together; None where there is no limit."""
    shares = [_text(group / "cpu.max").partition(" ")[::2] for group in _groups("")]
    shares += [
        (_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")) for group in _groups("cpu")
    ]
    return min((int(quota) / int(period) for quota, period in shares if quota.isdecimal()), default=None)


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those above it. controller: of version 1; empty: version 2.

    A container may see the name that its group has on the host, while the group is mounted as the root.
    """
    mounted = MOUNTED / controller
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, name = line.split(":", 2)
        if controller in controllers.split(","):
            group = mounted / name.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mounted))


def _text(file: Path) -> str:
    """Empty where it cannot be read, as of a controller that is off."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
