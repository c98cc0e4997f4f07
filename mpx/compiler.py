"""Whether kernels can be built on this machine."""

import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path


@cache
def builds_kernels() -> bool:
    """Triton, and with it torch.compile on a GPU, builds what starts its kernels in C: with a compiler and Python's header files, which
    slim images and systems without python3-dev lack. Source: triton/runtime/build.py."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and Path(sysconfig.get_config_var("INCLUDEPY") or "", "Python.h").is_file()
