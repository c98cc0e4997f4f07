"""Use mpx in the training loops of other libraries.

from mpx.compat import amp    # successor of apex.amp, which NVIDIA deleted; needs only torch
from mpx.compat import ASP    # successor of apex.contrib.sparsity.ASP; needs only torch
from mpx.compat.transformers import RecorderCallback, SparsityCallback    # for transformers.Trainer
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ASP on demand, so that importing amp does not import it."""
    if name == "ASP":
        from mpx.compat.asp import ASP

        return ASP
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
