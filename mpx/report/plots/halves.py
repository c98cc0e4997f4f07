"""Draws all groups of a comparison, half of them in a second process: drawing is what takes time in a report of many groups.

A plain child process, and not multiprocessing, which would run the user's own script again where that has no `__main__` guard.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from mpx.report.comparison import Comparison
from mpx.report.plots.bands import Bands
from mpx.report.plots.draw import group_curves, pictures
from mpx.report.plots.picture import Picture
from mpx.report.plots.style import looks

WORTH_IT = 3  # groups, from which on the second process saves more than its start takes

Drawn = tuple[Bands, list[Picture]]


def draw_all(comparison: Comparison) -> list[Drawn]:
    """Curves and pictures of each group, in the order of the groups."""
    every = range(len(comparison.groups))
    if len(every) < WORTH_IT or (os.cpu_count() or 1) < 2:
        return draw_some(comparison, every)
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
        pickle.dump((comparison, every[1::2]), asked)
        asked.seek(0)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", __name__]
        # In a session of its own Ctrl-C reaches this process alone, which then ends the child without a traceback of its own.
        child = subprocess.Popen(command, stdin=asked, stdout=answered, env=environment, start_new_session=True)
        try:
            ours = draw_some(comparison, every[::2])
            failed = child.wait() != 0
        finally:
            child.kill()
            child.wait()
        answered.seek(0)
        theirs = draw_some(comparison, every[1::2]) if failed else pickle.load(answered)
    return [(theirs if i % 2 else ours)[i // 2] for i in every]


def draw_some(comparison: Comparison, which: Sequence[int]) -> list[Drawn]:
    look = looks(comparison)
    found = []
    for group in (comparison.groups[i] for i in which):
        curves = group_curves(group, comparison)
        found.append((curves, pictures(group, comparison, curves, look)))
    return found


def main() -> None:
    comparison, which = pickle.load(sys.stdin.buffer)
    pickle.dump(draw_some(comparison, which), sys.stdout.buffer)


if __name__ == "__main__":
    main()
