"""A second process that draws some groups of a comparison: drawing is what takes time in a report of many groups.

It is started early, so that it imports matplotlib while this process still compares. A plain child process, and not multiprocessing, which
would run the user's own script again where that has no `__main__` guard.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from mpx.report.comparison import Comparison, Run

WORTH_IT = 3  # groups, from which on the second process saves more than its start takes
MODULE = "mpx.report.plots.halves"


@contextmanager
def second_process(runs: Iterable[Run]) -> Iterator["SecondProcess | None"]:
    """One that waits for what to draw, and ends with the context; None where it would not be worth it."""
    if len({(run.model, run.data) for run in runs}) < WORTH_IT or (os.cpu_count() or 1) < 2:
        yield None
        return
    with tempfile.TemporaryFile() as answered:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # In a session of its own Ctrl-C reaches this process alone, which then ends the child without a traceback of its own.
        child = subprocess.Popen(
            [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=answered, env=environment, start_new_session=True
        )
        try:
            yield SecondProcess(child, answered)
        finally:
            child.kill()
            child.wait()
            with suppress(BrokenPipeError):
                child.stdin.close()


class SecondProcess:
    def __init__(self, child: subprocess.Popen, answered):
        self._child, self._answered = child, answered
        self.which: Sequence[int] = ()

    def ask(self, comparison: Comparison) -> None:
        """Begin to draw every other group."""
        self.which = range(0, len(comparison.groups), 2)
        with suppress(BrokenPipeError):  # it has failed already; answer() says so
            pickle.dump((comparison, self.which), self._child.stdin)
            self._child.stdin.close()

    def answer(self) -> list | None:
        """Wait for what was drawn of the groups `which`; None where the process failed."""
        if self._child.wait() != 0:
            return None
        self._answered.seek(0)
        return pickle.load(self._answered)
