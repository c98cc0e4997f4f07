"""Start the jobs of a worker as forks of one process, which has imported what every run needs (mpx/sweep/starter.py).

Importing PyTorch and Lightning takes seconds, which a study of hundreds of short runs would pay hundreds of times. A fork of a process that
has only imported is as separate from the other jobs as a fresh process. Where the starter cannot serve a job, the job is a fresh process.

multiprocessing's forkserver does not replace the starter, because signals get lost. A SIGTERM to the process group ends the server at once,
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

OF_ONE_JOB = {SWEEP_REPORT, SWEEP_PARENT, VISIBLE}  # environment variables that no library reads while it is imported
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
        """Whether it lives and was started in the job's surroundings. Libraries read the environment while they are imported."""
        return self.process.poll() is None and self.surroundings == _surroundings(environment)

    def end(self) -> None:
        self.answers.close()
        self.channel.close()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):  # its job is still writing its record
            self.process.wait(END_TIMEOUT)


class WarmJob:
    """A job that `starter` forks. It has those methods of subprocess.Popen that child.py uses."""

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
        (self.fresh or self.starter.process).terminate()


def start(command: list[str], environment: dict[str, str], *, will_train: bool) -> "subprocess.Popen[bytes] | WarmJob":
    """Start a job, `python -m mpx.train …`. will_train: the job will probably need the imports, so that a starter is worth its start."""
    global _starter
    if _starter is None and sys.platform == "linux" and (will_train or _trained):  # elsewhere forking PyTorch is not safe
        _starter = Starter(environment)
    if _starter is not None and _starter.serves(environment):
        return WarmJob(_starter, command, environment)
    return subprocess.Popen(command, env=environment)


def learn(report: dict[str, Any]) -> None:
    """A job of this worker has ended with this report."""
    global _trained
    _trained = _trained or (report["folder"] is not None and not report["skipped"])


def end() -> None:
    """The sweep is over. A starter whose worker is killed, and so cannot call this, notices that by itself."""
    global _starter, _trained
    if _starter is not None:
        _starter.end()
    _starter, _trained = None, False


def _surroundings(environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The working folder, and the variables that libraries may read while they are imported."""
    return os.getcwd(), {name: value for name, value in environment.items() if name not in OF_ONE_JOB}
