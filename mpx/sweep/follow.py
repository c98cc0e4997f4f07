"""Print the progress of a sweep whose workers print into files of their own."""

import threading
from pathlib import Path

from mpx.sweep.job_report import NOT_STARTED, each_report
from mpx.sweep.progress import show

INTERVAL = 1.0  # seconds between two looks


class Follower:
    """Prints the lines of each job that has ended, from a thread of its own. sweep: the sweep's folder."""

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.over = sweep, threading.Event()
        self.shown: set[int] = set()  # numbers of jobs
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Print what has ended since the last look, and return."""
        self.over.set()
        self.thread.join()
        self._look()

    def _follow(self) -> None:
        while not self.over.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        new = (report for report in each_report(self.sweep) if report["job"] not in self.shown and report["status"] != NOT_STARTED)
        for report in sorted(new, key=lambda report: report["job"]):
            self.shown.add(report["job"])
            show(self.sweep, report)
