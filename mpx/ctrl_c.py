"""Ctrl-C while a command starts.

Until its settings are read, a command has nothing to tidy up, and Ctrl-C ends it at once. KeyboardInterrupt, which Python raises at any
point, would show a traceback of imports, or be lost in a library.
"""

import os
import signal
import sys
from itertools import pairwise

COMMANDS = {f"mpx{mark}{name}" for mark in ".-" for name in ("train", "compare", "deploy", "bench", "doctor")}


def ends_at_once() -> None:
    """For the import of mpx. Changes nothing in a program that is no command of mpx, nor where Ctrl-C is ignored."""
    if sys.argv[:1] == ["-m"]:  # as long as Python looks for the module
        program = next((module for option, module in pairwise(sys.orig_argv) if option == "-m"), "")
    else:
        program = os.path.basename(next(iter(sys.argv), "")).removesuffix(".exe")
    if program in COMMANDS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raises() -> None:
    """From now on the command has something to tidy up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
