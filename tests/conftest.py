"""Three ways through the front door: `train(...)` in this process, `forked(...)` in a process of its own that
has imported PyTorch already, and `command(...)` as a user would, which costs the seconds that PyTorch's
import takes.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

# before PyTorch reads it; where several use the machine, threads wait at full speed
os.environ.setdefault("OMP_NUM_THREADS", "1")

import composing
from processes import Fork

composing.keep()

gc.disable()  # until the tests are collected: looking for garbage takes two fifths of what they import

# started in the background; the processes that tests interrupt would ignore it too
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    collected = yield
    gc.freeze()  # nor is any of it looked at later
    gc.enable()
    gc.set_threshold(7000, 10, 50)
    return collected


_modules = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Nor is what tests import later: mpx.deploy looks for garbage before each measurement, which then took
    three quarters of its time.

    With a GPU it is, since what is frozen would hold the device's memory.
    """
    global _modules
    ran = yield
    if len(sys.modules) > _modules + 50 and not Path("/dev/nvidiactl").exists():
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
    return ran


@dataclass
class Ran:
    code: int
    out: str
    err: str
    outputs: Path

    @property
    def folder(self) -> Path:
        """The one run folder."""
        (found,) = self.folders
        return found

    @property
    def folders(self) -> list[Path]:
        return sorted(path.parent for path in self.outputs.glob("*/*/seed*/result.json"))

    @property
    def record(self) -> dict:
        return json.loads((self.folder / "result.json").read_text())


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """train(*overrides) -> Ran; its outputs lie in tmp_path/outputs."""
    from mpx.train import main

    monkeypatch.setattr(
        "os.execve",
        lambda *_: pytest.fail("this process is to go on as a test: use `command` for several devices"),
    )
    # a process has one sweep, this one those of other tests
    monkeypatch.setattr("mpx.sweep.progress.running", [])

    def run(*overrides: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["mpx.train", *overrides, f"output_dir={tmp_path}/outputs"])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ran(ended.value.code, printed.out, printed.err, tmp_path / "outputs")

    return run


@pytest.fixture
def interrupted(train, monkeypatch):
    """interrupted(step, *overrides) -> Ran of a run that Ctrl-C ends just before the step after `step`."""
    from mpx.measure.throughput import Throughput

    def run(step: int, *overrides: str) -> Ran:
        def stop(self, trainer, *args):
            if trainer.global_step == step:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Throughput, "on_train_batch_start", stop)
            ran = train(*overrides)
        assert ran.code == 130, ran.err
        return ran

    return run


@pytest.fixture
def forked(tmp_path):
    """forked(*overrides) -> Ran, in a process of its own, started in tmp_path."""

    def run(*overrides: str, env: dict[str, str] | None = None) -> Ran:
        fork = Fork(*overrides, folder=tmp_path, env=env)
        return Ran(fork.wait(), fork.out, fork.err, tmp_path / "outputs")

    return run


@pytest.fixture
def command(tmp_path):
    """command(*overrides) -> Ran, in a fresh process, started in tmp_path."""

    def run(*overrides: str, timeout: float = 240, env: dict[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "mpx.train", *overrides],
            cwd=tmp_path, env=os.environ | (env or {}), capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, tmp_path / "outputs")

    return run


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    """What one run leaves in the environment for its child processes must not reach the next test."""
    for name in (
        "MPX_SWEEP_REPORT",
        "MPX_TRACEBACK",
        "HYDRA_FULL_ERROR",
        "PL_GLOBAL_SEED",
    ):
        monkeypatch.delenv(name, raising=False)
