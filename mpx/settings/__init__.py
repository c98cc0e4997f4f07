"""Settings: every key's type and range, which combinations make sense, and errors in one line. Imports nothing heavy.

fields.py                 the rule for every key (rules.py: the kinds of rules); bench.py, compare.py: those of the other commands
check.py                  a composed configuration against them, then combinations: sparsity.py, apex.py, reachable.py
front_door.py             what the commands share; words.py: the command line as typed; translate.py: Hydra's errors in one line
"""

from mpx.settings.check import check

__all__ = ["check"]
