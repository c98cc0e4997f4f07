"""Print the progress of a sweep whose workers print into files of their own."""

import json
import sys
import threading
from pathlib import Path

from mpx.sweep.job_report import FILE, NOT_STARTED
from mpx.sweep.progress import show

INTERVAL = 1.0  # seconds between two looks


class Follower:
    """Prints the lines of each job that has ended, from a thread of its own. sweep: the sweep's folder."""

    def __init__(self, sweep: Path) -> None:
        self.sweep, self.shown, self.over = sweep, set(), threading.Event()
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
        for file in sorted(self.sweep.glob(f"job*/{FILE}")):
            if file in self.shown:
                continue
            report = json.loads(file.read_text())
            if "job" not in report:  # the job is still ending, or waits in the queue again
                continue
            self.shown.add(file)
            if report["status"] == NOT_STARTED:
                continue
            if report["code"]:
                print(f"job {report['job']} {report['status']}: {report['line']}", file=sys.stderr, flush=True)
            show(file.parent, report)
