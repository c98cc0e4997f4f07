"""Ctrl-C while a command starts.

Until its settings are read, a command has nothing to tidy up, and Ctrl-C ends it at once. KeyboardInterrupt, which Python raises at any
point, would show a traceback of imports, or be lost in a library.
"""

import os
import signal
import sys


def ends_at_once() -> None:
    """For the import of mpx. Changes nothing in a program that is no command of mpx, nor where Ctrl-C is ignored."""
    program = next((word for word in sys.orig_argv[1:] if not word.startswith("-")), "")  # mpx.train after -m, or the script mpx-train
    if os.path.basename(program).startswith(("mpx.", "mpx-")) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raises() -> None:
    """From now on the command has something to tidy up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
