"""mpx in other libraries' loops: drop-in replacements for code that NVIDIA apex deleted or left unmaintained, which need only torch, and
callbacks for transformers.Trainer.

from mpx.compat import amp
from mpx.compat import ASP
from mpx.compat.transformers import RecorderCallback, SparsityCallback
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ASP on demand, so that importing amp does not import it."""
    if name == "ASP":
        from mpx.compat.asp import ASP

        return ASP
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
