"""Settings: every key's type and range, which combinations make sense, and errors in one line. Imports nothing heavy."""

from mpx.settings.check import check

__all__ = ["check"]
