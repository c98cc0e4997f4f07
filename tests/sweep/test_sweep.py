"""Sweeps as a user starts them: fresh processes, failures that stop nothing, signals, a table, and an exit
code."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock
from hydra import compose, initialize_config_dir
from processes import WAITING_NET, Fork, alive, wait_for

from mpx.settings.front_door import CONF
from mpx.sweep import jobs
from mpx.sweep.checks import at_once
from mpx.system.machine import usable_cores

FEW = [
    "model=mlp",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=3",
    "trainer.warmup_steps=1",
    "trainer.progress=off",
]
TWO_AT_ONCE = "hydra.launcher.n_jobs=2"
NET = """
from pathlib import Path
from torch import nn

def Net(input_shape, num_classes, width):
    if width == 2 and not Path("mended").exists():
        raise ValueError("width 2 is broken")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, num_classes))
"""


def statuses(ran):
    return {
        f"{path.parent.name}/{path.name}": json.loads((path / "result.json").read_text())["status"]
        for path in ran.folders
    }


@pytest.mark.slow
def test_one_job_fails_and_the_others_go_on(train):
    """Without momentum a job is refused; lr=1e30 diverges; 0.01 completes."""
    words = ["-m", *FEW, "optimizer=sgd", "optimizer.nesterov=true"]
    ran = train(*words, "optimizer.momentum=0,0.9", "optimizer.lr=1e30,0.01", TWO_AT_ONCE)
    assert ran.code == 1
    assert sorted(statuses(ran).values()) == ["completed", "diverged"]
    assert "  diverged: the loss became infinite or NaN by step" in ran.err
    assert "3 of 4 runs did not complete" in ran.err
    assert "4 runs, 2 at once" in ran.out
    assert re.search(r"^./4 mlp fp32-dense .*optimizer.lr=0.01 seed 0  0\.", ran.out, re.MULTILINE)

    again = train(*words, "optimizer.momentum=0.9,0", "optimizer.lr=0.01,1e30,0.02")
    assert again.code == 1
    assert "finished earlier" in again.out
    assert "diverged earlier: the loss became infinite or NaN by step" in again.err


@pytest.mark.slow
def test_a_failed_job_is_listed_until_it_is_retried(command, tmp_path):
    (tmp_path / "moody_net.py").write_text(NET)
    sweep = [
        "-m",
        "model=custom",
        "model._target_=moody_net.Net",
        *FEW[1:],
        "+model.kwargs.width=2,8",
        TWO_AT_ONCE,
    ]
    assert command(*sweep).code == 1
    (tmp_path / "mended").touch()
    again = command(*sweep)
    assert again.code == 1
    assert "failed earlier: ValueError: width 2 is broken. retry_failed=true tries it again." in again.err
    retried = command(*sweep, "retry_failed=true")
    assert retried.code == 0, retried.err
    assert "finished earlier" in retried.out


@pytest.mark.slow
def test_started_again_a_sweep_skips_what_is_finished(train):
    """Also where the study was carried to another machine without its checkpoints; a run that was cut off
    there begins again."""
    words = ["-m", *FEW, "seed=0,1,2", TWO_AT_ONCE]
    first = train(*words)
    assert first.code == 0, first.out + first.err
    assert all("test accuracy" in (path / "log.txt").read_text() for path in first.folders)
    for path in first.folders:
        shutil.rmtree(path / "checkpoints")
    (first.folders[2] / "result.json").unlink()
    before = [(path / "result.json").read_text() for path in first.folders[:2]]
    again = train(*words)
    assert again.code == 0
    assert "3 runs, 2 at once, about 0 s of training; " in again.out  # of the one that was cut off
    assert again.out.count("finished earlier") == 2
    assert list(statuses(again).values()) == ["completed"] * 3
    assert [(path / "result.json").read_text() for path in again.folders[:2]] == before


@pytest.mark.slow
def test_loaders_of_a_job_start_their_workers_as_those_of_a_run(command, tmp_path):
    net = "import multiprocessing\n" + NET.replace(
        "    if", "    print(multiprocessing.get_start_method(), 'it is')\n    if"
    )
    (tmp_path / "method_net.py").write_text(net)
    done = command(
        "-m", "model=custom", "model._target_=method_net.Net", *FEW[1:], "+model.kwargs.width=8", "seed=0,1"
    )
    assert done.code == 0, done.err
    logs = [log.read_text() for log in tmp_path.glob("outputs/*/*/seed?/log.txt")]
    assert [f"{multiprocessing.get_start_method()} it is" in log for log in logs] == [True, True]


def test_a_job_that_another_sweep_runs_is_in_use(train, tmp_path, monkeypatch):
    first = train("model=mlp", *FEW)
    (first.folder / "result.json").rename(tmp_path / "result.json")
    (folder,) = first.outputs.glob("*/*/seed0")
    monkeypatch.setenv("MPX_SWEEP_REPORT", str(tmp_path / "report.json"))
    with FileLock(folder / ".lock"):
        ran = train("model=mlp", *FEW)
    assert (ran.code, ran.err) == (2, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["folder"], report["skipped"]) == ("in use", None, True)
    assert (
        report["line"]
        == f"{folder} is in use by another process. The same command takes its result once it has finished."
    )
    shutil.move(tmp_path / "result.json", folder)
    monkeypatch.setenv("MPX_SWEEP_REPORT", str(tmp_path / "none" / "report.json"))
    assert train("model=mlp", *FEW).code == 0, "where no report can be written, the exit code says it"


def test_each_job_has_its_own_exit_code(monkeypatch):
    """Also where some start while others end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["os"])  # and not pytest

    def start(*_):
        process = context.Process(target=os._exit, args=(7,))
        process.start()
        return process

    monkeypatch.setattr(jobs, "start", start)
    launcher = jobs.Local(8)
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: launcher._process([], {}, Path()), range(200)))
    assert codes == [7] * 200


@pytest.mark.parametrize(
    ("words", "count"), [([], 1), (["hydra.launcher.n_jobs=-1"], usable_cores()), ([TWO_AT_ONCE], 2)]
)
def test_jobs_at_once(words, count):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert at_once(compose("train", words, return_hydra_config=True).hydra) == count


def descendants(pid):
    """Processes that `pid` started, and those that they started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


def records(folder):
    return [json.loads(path.read_text()) for path in folder.glob("outputs/*/*/seed?/result.json")]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes in /proc")
def test_a_sweep_and_a_job_that_are_killed(tmp_path):
    """With -9.

    The same command finishes what they began. Each of two jobs at once sees one of the GPUs that the user has
    made visible.
    """
    (tmp_path / "waiting_net.py").write_text(WAITING_NET)
    words = [
        "-m",
        "model=custom",
        "model._target_=waiting_net.Net",
        "seed=0,1",
        "trainer.max_epochs=60",
        TWO_AT_ONCE,
    ]
    words += ["trainer.checkpoint_every_n_steps=5"]
    sweep = Fork(*words, folder=tmp_path, env={"CUDA_VISIBLE_DEVICES": "5,6"})
    wait_for(lambda: len(list(tmp_path.glob("outputs/*/*/seed?/checkpoints/last.ckpt"))) >= 2)
    family = descendants(sweep.pid)
    jobs = [int(file.name.removeprefix("saw-")) for file in tmp_path.glob("saw-*")]
    assert set(jobs) <= family
    os.kill(jobs[0], signal.SIGKILL)
    wait_for(lambda: "killed by signal 9; the same command continues it" in sweep.err)
    sweep.send_signal(signal.SIGKILL)  # the other job must notice by itself
    sweep.wait()
    wait_for(lambda: not any(map(alive, family)), seconds=60)
    assert sorted(file.read_text() for file in tmp_path.glob("saw-*")) == ["5", "6"]

    again = Fork(*words, folder=tmp_path)
    assert again.wait() == 0, again.err
    assert [record["status"] for record in records(tmp_path)] == ["completed"] * 2
    # One may have ended before the kill.
    assert any(record["environment"]["resumed_from_steps"] for record in records(tmp_path))
    assert "2/2 " in again.out


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at processes in /proc")
def test_ctrl_c_lets_each_job_save(tmp_path):
    """A terminal sends it to the group of the first process."""
    (tmp_path / "waiting_net.py").write_text(WAITING_NET)
    jobs = ["model=custom", "model._target_=waiting_net.Net", "seed=0,1,2", "trainer.max_epochs=9999"]
    sweep = Fork("-m", *jobs, TWO_AT_ONCE, folder=tmp_path, before="import os; os.setsid()")
    wait_for(lambda: len(list(tmp_path.glob("outputs/*/*/seed?/checkpoints/last.ckpt"))) >= 2)
    family = descendants(sweep.pid)
    os.killpg(sweep.pid, signal.SIGINT)
    assert sweep.wait() == 130
    assert sweep.err.count("interrupted; the same command continues it") == 2
    assert [record["status"] for record in records(tmp_path)] == ["interrupted"] * 2, (
        "the third has not begun"
    )
    wait_for(lambda: not any(map(alive, family)))
    assert not (tmp_path / "outputs" / "_sweep").exists()
