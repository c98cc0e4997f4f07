"""Settings: every key's type and range, which combinations make sense, and errors in one line. Imports nothing heavy."""

from mpx.settings.check import check
from mpx.settings.translate import one_line

__all__ = ["check", "one_line"]
