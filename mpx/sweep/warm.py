"""Start the jobs of a worker as forks of one process that has imported the modules of every run (mpx/sweep/starter.py).

Importing PyTorch and Lightning takes seconds, which a study of hundreds of short runs would pay hundreds of times. A fork of a process that
has only done imports is as isolated as a fresh process. If the starter cannot serve a job, the job is a fresh process.

multiprocessing's forkserver cannot replace the starter, because it loses signals. A SIGTERM to the process group ends the server at once,
and with it the only way to wait for a job that still writes its record (its exit code becomes 255). A Ctrl-C while it imports or forks does
not end the job.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from mpx.channels import SWEEP_PARENT, SWEEP_REPORT
from mpx.sweep.gpus import VISIBLE

PER_JOB = {SWEEP_REPORT, SWEEP_PARENT, VISIBLE}  # environment variables that differ between jobs and that no library reads at import
END_TIMEOUT = 2.0  # seconds for a starter to end

_starter: "Starter | None" = None  # of this worker
_trained = False  # a job of this worker has reached training


class Starter:
    """A process that forks one job at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.surroundings = _surroundings(environment)
        self.channel, its = socket.socketpair()
        with its:
            command = [sys.executable, "-m", "mpx.sweep.starter", str(its.fileno())]
            self.process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
        self.answers = self.channel.makefile("rb")

    def serves(self, environment: dict[str, str]) -> bool:
        """Whether the starter is alive and has the job's surroundings, since libraries read the environment at import."""
        return self.process.poll() is None and self.surroundings == _surroundings(environment)

    def end(self) -> None:
        self.answers.close()
        self.channel.close()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):  # the job is still writing its record
            self.process.wait(END_TIMEOUT)


class WarmJob:
    """A job that `starter` forks, with the methods of subprocess.Popen that child.py uses."""

    def __init__(self, starter: Starter, command: list[str], environment: dict[str, str]) -> None:
        self.starter, self.command, self.environment = starter, command, environment
        self.fresh: subprocess.Popen[bytes] | None = None
        self.stopped = False
        request = {"arguments": command[3:], "environment": environment}  # without `python -m mpx.train`
        with suppress(OSError):  # the starter has just died, which `wait` notices
            starter.channel.sendall(json.dumps(request).encode() + b"\n")

    def wait(self) -> int:
        """Returns the exit code; -N when signal N ended the job. If the starter dies, the job ends too and a fresh process repeats it."""
        if self.fresh is None:
            try:
                answer = self.starter.answers.readline()
            except ConnectionError:  # the starter died before it read the request
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
        self.stopped = True
        (self.fresh or self.starter.process).terminate()


def start(command: list[str], environment: dict[str, str], *, will_train: bool) -> "subprocess.Popen[bytes] | WarmJob":
    """Start a job, `python -m mpx.train …`. will_train: the job probably needs the imports, so a starter is worthwhile."""
    global _starter
    if _starter is None and sys.platform == "linux" and (will_train or _trained):  # elsewhere forking PyTorch is not safe
        _starter = Starter(environment)
    if _starter is not None and _starter.serves(environment):
        return WarmJob(_starter, command, environment)
    return subprocess.Popen(command, env=environment)


def learn(report: dict[str, Any]) -> None:
    """Note the report of a job of this worker that has ended."""
    global _trained
    _trained = _trained or (report["folder"] is not None and not report["skipped"])


def end() -> None:
    """End the starter with the sweep. If the worker is killed first, the starter notices that by itself."""
    global _starter, _trained
    if _starter is not None:
        _starter.end()
    _starter, _trained = None, False


def _surroundings(environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The working folder, and the environment variables that libraries may read at import."""
    return os.getcwd(), {name: value for name, value in environment.items() if name not in PER_JOB}
