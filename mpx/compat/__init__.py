"""Drop-in successors of code that NVIDIA apex deleted or left unmaintained. Needs torch alone.

from mpx.compat import amp
from mpx.compat import ASP
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """ASP when it is asked for, so that amp alone does not import it."""
    if name == "ASP":
        from mpx.compat.asp import ASP

        return ASP
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
