"""Import PyTorch and Lightning without garbage collection, which takes a quarter of the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy() -> Iterator[None]:
    """The block imports PyTorch. No later collection looks at what it makes, nor does the one at Python's end, which would take a second.

    Where PyTorch is there already this changes nothing, because the objects of a program that calls mpx are not mpx's to keep.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
