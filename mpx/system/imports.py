"""Import PyTorch and Lightning: without garbage collection, which takes a quarter of the time, and with
threads that wait briefly."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mpx.errors import UserError
from mpx.system.machine import wait_briefly


@contextmanager
def heavy() -> Iterator[None]:
    """The block imports PyTorch. No later collection looks at what it makes, nor does the one at Python's
    end, which would take a second.

    Where PyTorch is there already this changes nothing, because the objects of a program that calls mpx are
    not mpx's to keep. Raises UserError as `check_compilers_cache`.
    """
    check_compilers_cache()
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    wait_briefly()
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
