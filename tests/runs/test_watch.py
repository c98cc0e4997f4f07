"""A process of a run that waits inside a library ends all the same: by a signal that it does not hear, and after the others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import alive, wait_for

from mpx.runs import ranks
from mpx.runs.folder import PART

RANK_0 = """
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
from mpx.runs import ranks, signals, watch

watch.LOOK, watch.GRACE, signals.PATIENCE = 0.05, 0.1, 0.2
folder = Path.cwd()

def conclude(lost):
    (folder / "concluded").write_text(f"lost={lost} failure={ranks.failure_elsewhere(folder)}")
    return 7

def inside_a_library(note=lambda: None):
    "A mutex that is locked twice. The system goes on waiting for it after a signal."
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    note()
    lock(mutex)

signals.stop_once()
with watch.over_all(folder, conclude):
    exec(sys.argv[1])
"""
NOTE = "inside_a_library((folder / 'in').touch)"
FORK = """
if (worker := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGTERM)  # as Slurm tells all processes
    os._exit(0)
os.waitpid(worker, 0)
time.sleep(1)
sys.exit(9)
"""


@pytest.fixture
def rank_0(tmp_path):
    """rank_0(what it does in the block) -> its process."""
    (tmp_path / "rank_0.py").write_text(RANK_0)
    return lambda does: subprocess.Popen([sys.executable, "rank_0.py", does], cwd=tmp_path)


def wait_until_inside(folder):
    wait_for((folder / "in").exists)
    time.sleep(0.1)  # from the note into the lock


def concluded(folder):
    return (folder / "concluded").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_it_does_not_hear(rank_0, tmp_path, number):
    run = rank_0(NOTE)
    wait_until_inside(tmp_path)
    run.send_signal(number)
    assert run.wait(20) == 7
    assert concluded(tmp_path) == "lost=False failure=None"


def test_a_checkpoint_is_written_to_its_end(rank_0, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    part = tmp_path / "checkpoints" / f".last.ckpt{PART}"
    part.touch()  # left by a process that was killed
    run = rank_0(NOTE)
    wait_until_inside(tmp_path)
    assert not part.exists()
    part.touch()
    run.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(1)
    part.unlink()
    assert run.wait(20) == 7


def test_a_signal_that_it_hears_ends_it_in_order(rank_0, tmp_path):
    run = rank_0("(folder / 'in').touch(); time.sleep(20)")
    wait_until_inside(tmp_path)
    run.send_signal(signal.SIGTERM)
    assert run.wait(20) == 143
    assert not (tmp_path / "concluded").exists()


def test_a_signal_to_a_worker_is_not_its_own(rank_0, tmp_path):
    assert rank_0(FORK).wait(20) == 9
    assert not (tmp_path / "concluded").exists()


@pytest.mark.parametrize(("failure", "found"), [("", ""), ("no such word", "in process 1: no such word")])
def test_another_rank_has_ended(rank_0, tmp_path, failure, found):
    run = rank_0(NOTE)
    wait_until_inside(tmp_path)
    ranks.report_end(tmp_path, 1, failure)
    assert run.wait(20) == 7
    assert concluded(tmp_path) == f"lost=False failure={found}"
    assert not ranks.ends_elsewhere(tmp_path)


def test_another_rank_was_killed(rank_0, tmp_path):
    run = rank_0("watch.started.append(subprocess.Popen(['sleep', '20'])); watch.started[0].kill(); inside_a_library()")
    assert run.wait(20) == 7
    assert concluded(tmp_path) == "lost=True failure=None"


def test_what_another_rank_has_left_goes_with_the_run(rank_0, tmp_path):
    assert rank_0("ranks.report_end(folder, 1)").wait(20) == 0
    assert not ranks.ends_elsewhere(tmp_path)


def test_rank_0_was_killed_before_this_one_knew_it(tmp_path):
    """Its parent is another process already."""
    rank_1 = "from mpx.runs import watch; import time; watch.LOOK = watch.GRACE = 0.05; watch.end_with_rank_0(); time.sleep(20)"
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert subprocess.run([sys.executable, "-c", rank_1], timeout=20).returncode == 1


def handles_sigterm(process):
    """Whether `process`, a folder below /proc, is rank 1, whose handlers are in force."""
    try:
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return b"LOCAL_RANK=1" in (process / "environ").read_bytes() and int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1
    except (OSError, ValueError):  # it ends
        return False


@pytest.mark.slow
def test_a_rank_is_told_to_go_while_rank_0_waits_for_it_to_start(tmp_path):
    words = ["trainer.accelerator=cpu", "model=mlp", "trainer.devices=2", "trainer.max_epochs=9", "trainer.progress=off"]
    run = subprocess.Popen([sys.executable, "-m", "mpx.train", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    rank_1 = wait_for(lambda: next(filter(handles_sigterm, (Path("/proc", pid) for pid in children.read_text().split())), None))
    os.kill(int(rank_1.name), signal.SIGTERM)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 143
    assert err.endswith("interrupted before training began; nothing was changed\n")  # or first that the other one is gone
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: not alive(int(rank_1.name)), seconds=5)
