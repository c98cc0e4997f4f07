"""Several jobs of a sweep at once. A sweep that is killed with -9 leaves nothing running, and the same sweep finishes what it began."""

import json
import os
import signal
import subprocess
import time

import pytest
from filelock import FileLock
from hydra import compose, initialize_config_dir
from processes import WAITING_NET, Fork, alive, wait_for

from mpx.machine import usable_cores
from mpx.settings.front_door import CONF, expect_schemas
from mpx.sweep import orphan
from mpx.sweep.job_report import note_start
from mpx.sweep.size import at_once


def descendants(pid):
    """Processes that `pid` started, and those that they started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes in /proc")
def test_killed_and_started_again(forked, tmp_path):
    """Of two studies, whose folders are not the sweep's. Each sees one GPU, also here, since what the user has made visible is believed."""
    (tmp_path / "waiting_net.py").write_text(WAITING_NET)
    arguments = ["-m", "model=custom", "model._target_=waiting_net.Net", "study=one,two", "trainer.max_epochs=40"]
    two_at_once = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    sweep = Fork(*arguments, *two_at_once, folder=tmp_path, env={"CUDA_VISIBLE_DEVICES": "5,6"})
    wait_for(lambda: len(list(tmp_path.glob("outputs/*/*/seed0/checkpoints/last.ckpt"))) >= 2)
    family = descendants(sweep.pid)
    assert len(family) == 4, "two starters and two jobs"
    sweep.send_signal(signal.SIGKILL)  # the others must notice by themselves
    sweep.wait()
    wait_for(lambda: not any(map(alive, family)), seconds=30)
    assert sorted(file.read_text() for file in tmp_path.glob("saw-*")) == ["5", "6"]
    assert "sweep of 2 jobs, 2 at once" in sweep.out
    assert "epoch 1/" not in sweep.out  # off by default where several would mix

    ran = forked(*arguments)
    assert ran.code == 0, ran.err
    assert [path.parents[1].name for path in ran.folders] == ["one", "two"]
    records = [json.loads((path / "result.json").read_text()) for path in ran.folders]
    assert [record["status"] for record in records] == ["completed"] * 2
    assert any(record["environment"]["resumed_from_steps"] for record in records)  # one may have been ready just before the kill
    assert "2 of 2 done, 0 failed, 0 running, 0 left" in ran.out
    assert "mpx.compare study=one\n" in ran.out
    assert "mpx.compare study=two\n" in ran.out
    assert sorted(path.name for path in ran.outputs.iterdir() if path.name != "_sweep") == ["one", "two"]


def test_as_many_jobs_at_once_as_cores_unless_told():
    expect_schemas()  # of the plugin of that name, where it is installed
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert at_once(compose("train", ["hydra/launcher=joblib"], return_hydra_config=True).hydra) == usable_cores()


GONE = 2**22  # no process of Linux has an id above it
SLOW_DISK = """
import time
from mpx.runs import outcome

write = outcome._write
outcome._write = lambda *what: time.sleep(1) or write(*what)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes in /proc")
@pytest.mark.parametrize("kill", [os.killpg, os.kill])
def test_ctrl_c_leaves_the_record_of_each_job(tmp_path, kill):
    """A terminal sends it to all processes, `kill -INT` to the first one alone."""
    (tmp_path / "waiting_net.py").write_text(SLOW_DISK + WAITING_NET)
    jobs = ["model=custom", "model._target_=waiting_net.Net", "seed=0,1,2", "trainer.max_epochs=9999"]
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    sweep = Fork("-m", *jobs, *launcher, folder=tmp_path, before="import os; os.setsid()")
    wait_for(lambda: len(list(tmp_path.glob("outputs/*/*/seed?/checkpoints/last.ckpt"))) >= 2)
    family = descendants(sweep.pid)
    kill(sweep.pid, signal.SIGINT)
    assert sweep.wait() == 130
    assert sweep.err.count("interrupted; the same command continues it") == 2, sweep.err
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/*/seed?/result.json")]
    assert [record["status"] for record in records] == ["interrupted"] * 2, "the third has not begun"
    wait_for(lambda: not any(map(alive, family)), seconds=30)


HANGING_NET = """
import os, signal, time
from pathlib import Path

def Net(input_shape, num_classes):
    # As inside a library that waits for ever: no signal is heard.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    Path(f"hangs-{os.getpid()}").touch()
    time.sleep(100)
"""


@pytest.mark.slow
def test_ctrl_c_again_and_again_ends_jobs_that_hang(tmp_path):
    (tmp_path / "hanging_net.py").write_text(HANGING_NET)
    words = ["-m", "model=custom", "model._target_=hanging_net.Net", "seed=0,1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    sweep = Fork(*words, folder=tmp_path, before="from mpx.sweep import parallel; parallel.PATIENCE = 2")
    wait_for(lambda: len(list(tmp_path.glob("hangs-*"))) == 2)
    jobs = [int(path.name.removeprefix("hangs-")) for path in tmp_path.glob("hangs-*")]
    for _ in range(2):
        sweep.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert all(map(alive, jobs)), "they may write their records"
    time.sleep(4)
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(timeout=20) == 130, sweep.err
    assert not any(map(alive, jobs))
    assert "Traceback" not in sweep.err


def test_the_next_sweep_removes_the_folders_of_killed_ones(tmp_path, monkeypatch):
    """Not one of a sweep that runs or begins, that has ended with failed jobs, or that is of another machine."""
    monkeypatch.setenv("MPX_SWEEP", f"here-{os.getpid()}")

    def left(name, reports):
        (tmp_path / name / "job0").mkdir(parents=True)
        orphan.owned(tmp_path / name).release()
        (tmp_path / name / "size.json").write_text('{"total": 2, "at_once": 1}')
        note_start(tmp_path / name / "job0")
        for job in range(reports):
            (tmp_path / name / f"job{job}").mkdir(exist_ok=True)
            (tmp_path / name / f"job{job}" / "report.json").write_text(f'{{"job": {job}, "code": 1}}')
        return tmp_path / name

    for name, reports in {GONE + 1: 0, GONE + 2: 1, GONE + 3: 2, os.getppid(): 0, os.getpid(): 0}.items():
        left(f"here-{name}", reports)
    left(f"there-{GONE + 4}", 0)
    (left(f"here-{GONE + 6}", 0) / ".submitit").mkdir()
    with FileLock(left(f"here-{GONE + 5}", 0) / orphan.OWNER):
        orphan.remove_left(tmp_path / f"here-{os.getpid()}")
    kept = [f"here-{name}" for name in (GONE + 3, GONE + 5, GONE + 6, os.getppid(), os.getpid())]
    assert {path.name for path in tmp_path.iterdir()} == {*kept, f"there-{GONE + 4}"}
    orphan.remove_left(tmp_path / f"here-{GONE + 8}")  # a hydra.sweep.dir of the user's
    assert (tmp_path / f"here-{GONE + 5}").exists()
