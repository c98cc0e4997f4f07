"""Start jobs as forks of a process that has imported the modules of every run (mpx/sweep/starter.py), one for each job that runs at once.

Importing PyTorch and Lightning takes seconds, which a study of hundreds of short runs would pay hundreds of times. A fork of a process that
has only done imports is as isolated as a fresh process. If no starter can serve a job, the job is a fresh process.

multiprocessing's forkserver cannot replace the starter, because it loses signals. A SIGTERM to the process group ends the server at once,
and with it the only way to wait for a job that still writes its record (its exit code becomes 255). A Ctrl-C while it imports or forks does
not end the job.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import Any

from mpx.environment_variables import SWEEP_PARENT, SWEEP_REPORT
from mpx.launch import this_python
from mpx.sweep.gpus import VISIBLE

PER_JOB = {SWEEP_REPORT, SWEEP_PARENT, VISIBLE}  # environment variables that differ between jobs and that no library reads at import
TERMINATE, KILL = b"", b"\r"  # lines to a starter about its job; if that has ended, it takes them for empty ones
END_TIMEOUT = 2.0  # seconds for a starter to end

_idle: "list[Starter]" = []  # those without a job
_lock = Lock()  # of this list
_trained = False  # a job of this process has reached training
_in_vain = False  # a starter has ended by itself, as the next one would


class Starter:
    """A process that forks one job at a time."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.surroundings = _surroundings(environment)
        self.channel, its = socket.socketpair()
        with its:
            command = [*this_python(), "mpx.sweep.starter", str(its.fileno())]
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which it inherits: `terminate` ends it without a traceback
            try:
                self.process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.answers = self.channel.makefile("rb")

    def serves(self, environment: dict[str, str]) -> bool:
        """Whether it has the job's surroundings, since libraries read the environment at import."""
        return self.surroundings == _surroundings(environment)

    def send(self, line: bytes) -> None:
        with suppress(OSError):  # the starter has just died, which `answer` notices
            self.channel.sendall(line + b"\n")

    def answer(self) -> int | None:
        """The exit code of its job; None if the starter has died."""
        try:
            line = self.answers.readline()
        except ConnectionError:  # before it read the request
            line = b""
        return int(line) if line else None

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
        arguments = command[command.index("mpx.train") + 1 :]
        starter.send(json.dumps({"arguments": arguments, "environment": environment}).encode())

    def wait(self) -> int:
        """Returns the exit code; -N when signal N ended the job. If the starter dies, the job ends too and a fresh process repeats it."""
        global _in_vain
        if self.fresh is None:
            if (code := self.starter.answer()) is not None:
                _idle.append(self.starter)
                return code
            if self.stopped:
                return self.starter.process.wait()
            _in_vain = True
            self.fresh = subprocess.Popen(self.command, env=self.environment)
            if self.stopped:  # meanwhile: what ends the sweep may have ended the starter first
                self.fresh.terminate()
        return self.fresh.wait()

    def terminate(self) -> None:
        self.stopped = True
        if self.fresh is not None:
            self.fresh.terminate()
        else:
            self.starter.send(TERMINATE)  # which passes it on to the job
            self.starter.process.terminate()  # which ends it while it imports

    def kill(self) -> None:
        self.stopped = True
        if self.fresh is not None:
            self.fresh.kill()
        else:
            self.starter.send(KILL)


def start(command: list[str], environment: dict[str, str], *, will_train: bool) -> "subprocess.Popen[bytes] | WarmJob":
    """Start a job, `python -m mpx.train …`. will_train: the job probably needs the imports, so a starter is worthwhile."""
    with _lock:
        starter = next((starter for starter in _idle if starter.serves(environment)), None)
        if starter is not None:
            _idle.remove(starter)
        elif not _idle and not _in_vain and (will_train or _trained) and sys.platform == "linux":  # elsewhere forking PyTorch is not safe
            starter = Starter(environment)
    return subprocess.Popen(command, env=environment) if starter is None else WarmJob(starter, command, environment)


def learn(report: dict[str, Any]) -> None:
    """Note the report of a job that has ended."""
    global _trained
    _trained = _trained or (report["folder"] is not None and not report["skipped"])


def end() -> None:
    """End the starters with the sweep. If this process is killed first, they notice that by themselves."""
    global _trained, _in_vain
    while _idle:
        _idle.pop().end()
    _trained = _in_vain = False


def _surroundings(environment: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The working folder, and the environment variables that libraries may read at import."""
    return os.getcwd(), {name: value for name, value in environment.items() if name not in PER_JOB}
