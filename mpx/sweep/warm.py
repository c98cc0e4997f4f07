"""A launcher's worker keeps one process that has imported what every run needs; each job is a fork of it (mpx/sweep/starter.py).

Importing PyTorch and Lightning takes seconds, which a study of hundreds of short runs would pay hundreds of times. A fork of a process that
has imported and done nothing else is as separate from the other jobs as a fresh process is. Where there is no such process, or it cannot
serve, a job is a fresh process.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from mpx.sweep.gpus import VISIBLE
from mpx.sweep.job_report import REPORT
from mpx.sweep.orphan import PARENT

OF_ONE_JOB = {REPORT, PARENT, VISIBLE}  # environment variables that nothing reads while it is imported
SECONDS = 2.0  # for a starter to end

_starter: "Starter | None" = None  # of this worker
_trained = False  # whether a job of this worker has come to training


class Starter:
    """A process that forks one job at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.place = _place(environment)
        self.channel, its = socket.socketpair()
        with its:
            command = [sys.executable, "-m", "mpx.sweep.starter", str(its.fileno())]
            self.process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
        self.answers = self.channel.makefile("rb")

    def serves(self, environment: dict[str, str]) -> bool:
        """Whether it was started as this job would be: libraries read the environment while they are imported."""
        return self.process.poll() is None and self.place == _place(environment)

    def end(self) -> None:
        self.answers.close()
        self.channel.close()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):  # its job is still writing its record
            self.process.wait(SECONDS)


class WarmJob:
    """A job that `starter` forks, with what child.py uses of subprocess.Popen."""

    def __init__(self, starter: Starter, command: list[str], environment: dict[str, str]) -> None:
        self.starter, self.command, self.environment = starter, command, environment
        self.fresh: subprocess.Popen[bytes] | None = None
        self.stopped = False
        request = {"arguments": command[3:], "environment": environment}  # after `python -m mpx.train`
        with suppress(OSError):  # it has just died: `wait` notices
            starter.channel.sendall(json.dumps(request).encode() + b"\n")

    def wait(self) -> int:
        """Its exit code; -N when signal N ended it. If the starter dies, the job ends too, and goes on as a fresh process."""
        if self.fresh is None:
            try:
                answer = self.starter.answers.readline()
            except ConnectionError:  # it died before it had read the request
                answer = b""
            except BaseException:  # Ctrl-C or SIGTERM: the job is to end
                self.stopped = True
                raise
            if answer:
                return int(answer)
            if self.stopped:
                return self.starter.process.wait()
            self.fresh = subprocess.Popen(self.command, env=self.environment)
        return self.fresh.wait()

    def terminate(self) -> None:
        (self.fresh or self.starter.process).terminate()


def start(command: list[str], environment: dict[str, str], *, will_train: bool) -> "subprocess.Popen[bytes] | WarmJob":
    """Start a job, `python -m mpx.train …`. will_train: the job is likely to need the imports; only then is a starter worth its start."""
    global _starter
    if _starter is None and sys.platform == "linux" and (will_train or _trained):  # elsewhere forks of PyTorch are not safe
        _starter = Starter(environment)
    if _starter is not None and _starter.serves(environment):
        return WarmJob(_starter, command, environment)
    return subprocess.Popen(command, env=environment)


def learn(report: dict[str, Any]) -> None:
    """A job of this worker has ended with this report."""
    global _trained
    _trained = _trained or (report["folder"] is not None and not report["skipped"])


def end() -> None:
    """The sweep is over. Where this is not called, in a worker that is killed, the starter notices by itself."""
    global _starter, _trained
    if _starter is not None:
        _starter.end()
    _starter, _trained = None, False


def _place(environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    return os.getcwd(), {name: value for name, value in environment.items() if name not in OF_ONE_JOB}
