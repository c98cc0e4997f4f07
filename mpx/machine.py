"""What this machine offers a process: cores, and a compiler for kernels. Imports nothing heavy."""

import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may use (a container or Slurm may give fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def builds_kernels(device: str = "cuda") -> bool:
    """Triton, and with it torch.compile on a GPU, builds what starts its kernels in C, and torch.compile on a CPU all it makes in C++: with
    a compiler and Python's header files, which slim images and systems without python3-dev lack. Sources: triton/runtime/build.py,
    torch/_inductor/cpp_builder.py. device: cuda or cpu."""
    named, *known = ("CC", "gcc", "clang") if device == "cuda" else ("CXX", "g++", "clang++")
    compiler = os.environ.get(named) or next(filter(None, map(shutil.which, known)), None)
    return compiler is not None and Path(sysconfig.get_config_var("INCLUDEPY") or "", "Python.h").is_file()
