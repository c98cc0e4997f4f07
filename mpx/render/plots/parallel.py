"""A second process that draws every other group of a comparison: drawing is what takes time in a report of many groups.

A plain child process, and not multiprocessing, which would run the user's own script again where that has no `__main__` guard.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from mpx.compare.comparison import Comparison
from mpx.machine import usable_cores

WORTH_IT = 3  # groups, from which on the second process saves more than its start takes
MODULE = "mpx.render.plots.halves"


@dataclass
class SecondProcess:
    child: subprocess.Popen
    answered: IO[bytes]
    which: Sequence[int]  # groups

    def answer(self) -> list | None:
        """Wait for what was drawn of the groups `which`; None where the process failed."""
        if self.child.wait() != 0:
            return None
        self.answered.seek(0)
        return pickle.load(self.answered)


@contextmanager
def drawing_beside(comparison: Comparison) -> Iterator[SecondProcess | None]:
    """It begins to draw, and imports matplotlib for that, while this process does other things, and ends with the context; None where it
    would not be worth it."""
    if len(comparison.groups) < WORTH_IT or usable_cores() < 2:
        yield None
        return
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
        which = range(0, len(comparison.groups), 2)
        pickle.dump((comparison, which), asked)
        asked.seek(0)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # In a session of its own Ctrl-C reaches this process alone, which then ends the child without a traceback of its own.
        child = subprocess.Popen([sys.executable, "-m", MODULE], stdin=asked, stdout=answered, env=environment, start_new_session=True)
        try:
            yield SecondProcess(child, answered, which)
        finally:
            child.kill()
            child.wait()
