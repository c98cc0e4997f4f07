"""What tests that start and end processes share."""

import importlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import composing
import torch

WAITING_NET = """
import os, time
from pathlib import Path
from torch import nn

def Net(input_shape, num_classes):
    '''A model that begins when two jobs run. Each writes which GPUs it sees.'''
    Path(f"saw-{os.getpid()}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "nothing"))
    end = time.monotonic() + 90
    while len(list(Path().glob("saw-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""

TORCHRUN = Path(torch.__file__).parent / "distributed" / "run.py"

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["mpx.training.outcome", "mpx.training.fit"])


def on_ranks(count: int, target: Callable[..., None], *args: Any) -> None:
    """Run target(rank, *args) in `count` processes at once, and fail where one of them fails."""
    ranks = [forks.Process(target=target, args=(rank, *args)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(100)
    assert [rank.exitcode for rank in ranks] == [0] * count


class Fork:
    """`python -m mpx.train *words`, started in `folder`, as a fork of a process that has imported PyTorch and
    Lightning: it is a process of its own, but starts in a moment. The first fork of a test process starts
    that process.

    The process of a script that is torchrun's is a fork as well. before: a program that the process executes
    first. script: a file run in place of mpx.train.
    """

    def __init__(
        self,
        *words: str,
        folder: Path,
        env: dict[str, str] | None = None,
        before: str = "",
        script: Path | None = None,
    ) -> None:
        output = folder.with_name(f"{folder.name}-output")
        output.mkdir(exist_ok=True)
        number = len(list(output.iterdir()))
        self._files = [output / f"{number}.{stream}" for stream in ("out", "err")]
        for file in self._files:
            file.touch()
        self._process = forks.Process(
            target=_run, args=(words, folder, os.environ | (env or {}), self._files, before, script)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def out(self) -> str:
        return self._files[0].read_text()

    @property
    def err(self) -> str:
        return self._files[1].read_text()

    def poll(self) -> int | None:
        """The exit code once it has ended; -N when signal N ended it."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float = 240) -> int:
        """Its exit code; kills it and raises TimeoutError after `timeout` seconds."""
        self._process.join(timeout)
        if self.poll() is None:
            self._process.kill()
            self._process.join()
            raise TimeoutError(f"still running after {timeout} s:\n{self.out}{self.err}")
        return self.poll()


def _run(
    words: tuple[str, ...],
    folder: Path,
    environment: dict[str, str],
    files: list[Path],
    before: str,
    script: Path | None,
) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    composing.keep()
    # the system's own for what it starts, such as a loader's workers
    multiprocessing.set_start_method(None, force=True)
    sys.argv[1:] = words
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    if script == TORCHRUN:
        ForkedRank.prepare()
    exec(before, {})
    if script is not None:
        sys.path.insert(0, str(script.parent))
        runpy.run_path(str(script), run_name="__main__")
        return
    runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)


class Forked:
    """A process that was forked before it was needed, with the methods of subprocess.Popen that its user
    calls.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float = 120) -> int:
        wait_for(lambda: self.poll() is not None, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedRank(Forked):
    """The process that torchrun starts, by what stands there for subprocess.Popen."""

    def __init__(
        self,
        args: list[str],
        env: dict[str, str],
        cwd: str = ".",
        start_new_session: bool = False,
        **streams: None,
    ) -> None:
        super().__init__(self.waiting)
        words = args[args.index("mpx.train") + 1 :]
        self.channel.sendall(json.dumps([words, env, cwd, start_new_session]).encode())
        self.channel.close()

    @classmethod
    def prepare(cls) -> None:
        """Make the process that this one will start. It ends where this one does not come to that."""
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

        cls.channel, its = socket.socketpair()
        if (pid := os.fork()) == 0:
            cls.channel.close()
            _begin(its.makefile().read())
        its.close()
        cls.waiting = pid
        subprocess_handler.Popen = cls


def _begin(told: str) -> NoReturn:
    if not told:
        sys.exit()
    sys.argv[1:], environment, folder, new_session = json.loads(told)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if new_session:
        os.setsid()
    runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)
    sys.exit()


def wait_for(condition, seconds=120):
    """What `condition()` gives as soon as that is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def alive(pid):
    """Whether the process runs: one that has ended and was not waited for yet does not."""
    try:
        return "(zombie)" not in open(f"/proc/{pid}/status").read()
    except OSError:
        return False
