"""Jobs that are forks of one process that has imported everything: from outside, and for one another, they are as fresh processes are."""

import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from processes import Fork, alive, wait_for

from mpx.environment_variables import SWEEP_PARENT, SWEEP_REPORT
from mpx.sweep import warm

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every job is a fresh process")]

FEW = [
    "model=custom", "model._target_=telling_net.Net", "trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.warmup_steps=0",
    "trainer.accelerator=cpu", "trainer.progress=off",
]  # fmt: skip
NET = """
import json, math, os, signal, sys, time
from pathlib import Path
from torch import nn

log = open(f"log-{os.getpid()}", "w")  # never closed

def Net(input_shape, num_classes, act):
    told = {"pid": os.getpid(), "parent": os.getppid(), "environment": dict(os.environ), "arguments": sys.argv[1:]}
    told |= {"main": sys.modules["__main__"].__spec__.name, "leaked": hasattr(math, "leak"), "folder": os.getcwd()}
    told |= {"interruptible": callable(signal.getsignal(signal.SIGINT))}
    told |= {"blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])]}
    math.leak = True
    log.write("unflushed")
    Path("told.part").write_text(json.dumps(told))
    os.rename("told.part", f"told-{act}")
    if act == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "fail":
        raise ValueError("on purpose")
    while act == "wait" and not Path("go").exists():
        time.sleep(0.05)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


def surroundings(folder):
    """The environment of a job that reports to `folder`."""
    rest = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # differs from test to test
    return rest | {SWEEP_REPORT: str(folder / "report.json"), SWEEP_PARENT: str(os.getpid())}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder to which the test process moves, and in which its starter lives."""
    folder, before = tmp_path_factory.mktemp("warm"), os.getcwd()
    (folder / "telling_net.py").write_text(NET)
    os.chdir(folder)
    yield folder
    warm.end()
    os.chdir(before)


@pytest.fixture
def start(place):
    """start(act, *overrides, **environment) -> a job that has begun."""

    def run(act, *overrides, **environment):
        (place / f"told-{act}").unlink(missing_ok=True)
        command = [sys.executable, "-m", "mpx.train", *FEW, f"+model.kwargs.act={act}", "if_exists=overwrite", *overrides]
        return warm.start(command, surroundings(place) | environment, will_train=True)

    yield run
    if warm._in_vain:  # this test has killed its starter; the next one, in whatever order xdist runs them, may have another
        warm.end()


def told(place, act):
    return json.loads(wait_for((place / f"told-{act}").is_file) and (place / f"told-{act}").read_text())


def reported(place):
    return json.loads((place / "report.json").read_text())


@pytest.mark.parametrize(
    ("act", "overrides", "code"),
    [
        ("pass", [], 0),
        ("fail", [], 1),
        ("refused", ["optimizer.lr=-1"], 2),
        ("lost", ["optimizer.lr=1e30"], 3),
        ("die", [], -signal.SIGKILL),
    ],
)
def test_exit_codes(start, act, overrides, code):
    job = start(act, *overrides)
    assert isinstance(job, warm.WarmJob)
    assert job.wait() == code


def test_a_terminated_job_writes_its_record(start, place):
    job = start("wait")
    told(place, "wait")
    job.terminate()
    assert job.wait() == 143
    assert reported(place)["status"] == "interrupted"


def test_a_job_has_its_own_environment_and_command_line(start, place):
    assert start("pass", CUDA_VISIBLE_DEVICES="5").wait() == 0
    seen = told(place, "pass")
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == "5"
    assert seen["environment"][SWEEP_PARENT] == str(seen["parent"])
    assert seen["arguments"][-1] == "if_exists=overwrite"
    assert seen["main"] == "mpx.train"
    assert seen["folder"] == str(place)
    assert seen["interruptible"]
    assert seen["blocked"] == []
    assert (place / f"log-{seen['pid']}").read_text() == "unflushed"
    assert start("pass", "seed=3").wait() == 0
    assert told(place, "pass")["environment"].get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")
    record = json.loads(next(place.glob("outputs/default/*/seed3/result.json")).read_text())
    assert record["environment"]["command"].startswith("python -m mpx.train model=custom ")


def test_jobs_leave_nothing_to_one_another(start, place):
    seen = []
    for _ in range(2):
        assert start("pass").wait() == 0
        seen.append(told(place, "pass"))
    assert seen[0]["parent"] == seen[1]["parent"] != os.getpid()
    assert seen[0]["pid"] != seen[1]["pid"]
    assert [one["leaked"] for one in seen] == [False, False]


def test_a_fork_imports_little_and_counts_the_memory_of_the_libraries_as_its_own(tmp_path):
    """As a fresh process does, though a fork maps the pages of files only when it touches them."""
    program = """
import os, runpy, sys
from mpx.sweep.resident import resident_files, touch

def resident():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmRSS:"))
    return int(line.split()[1])

import mpx.sweep.imported
files, parent, before = resident_files(), resident(), set(sys.modules)
if os.fork():
    os.wait()
    sys.exit()
forked = resident()
touch(files)
print(parent, forked, resident())
try:
    runpy.run_module("mpx.train", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    assert ended.code == 0, ended.code
heavy = ("torch", "pytorch_lightning", "lightning_fabric", "torchmetrics", "sklearn", "tensorboard", "hydra", "mpx")
print(*(name for name in sys.modules if name not in before and name.partition(".")[0] in heavy))
"""
    few = ["model=mlp", *FEW[2:]]
    done = subprocess.run([sys.executable, "-c", program, *few], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    memory, *_, late = done.stdout.splitlines()
    parent, before, after = map(int, memory.split())
    assert before < 0.9 * parent
    assert after == pytest.approx(parent, rel=0.02)
    assert len(late.split()) < 30, late


def test_a_job_with_another_environment_is_a_fresh_process(start):
    """Libraries read it while they are imported."""
    start("pass").wait()  # there is a starter now
    job = start("pass", OMP_NUM_THREADS="2")
    assert isinstance(job, subprocess.Popen)
    job.kill()
    job.wait()


def test_when_the_starter_dies_its_job_goes_on_in_a_fresh_process(start, place):
    """And the jobs after it are fresh processes too."""
    job = start("wait", "if_exists=resume")
    seen = told(place, "wait")
    assert seen["parent"] == job.starter.process.pid
    job.starter.process.kill()
    (place / "told-wait").unlink()
    states = []

    def let_go_on():
        wait_for(lambda: not alive(seen["pid"]))  # it has noticed
        states.append(reported(place)["status"])
        (place / "go").touch()

    (notices := threading.Thread(target=let_go_on)).start()
    assert job.wait() == 0  # at once: it must not begin again while the first process still has the folder
    notices.join()
    assert states == ["interrupted"]
    assert told(place, "wait")["parent"] == os.getpid()
    assert reported(place)["status"] == "completed"
    job = start("pass")
    assert isinstance(job, subprocess.Popen)
    job.kill()
    job.wait()


def test_a_job_that_is_told_to_end_while_it_becomes_a_fresh_process_ends(monkeypatch):
    """Ctrl-C of a terminal also ends a starter that imports, which takes its job for one to repeat."""
    popen = subprocess.Popen

    def begins(command, env):
        process = popen(["sleep", "20"])
        job.terminate()  # by another thread
        return process

    monkeypatch.setattr(subprocess, "Popen", begins)
    monkeypatch.setattr(warm, "_in_vain", False)
    dead = SimpleNamespace(send=lambda line: None, answer=lambda: None, process=SimpleNamespace(terminate=lambda: None))
    job = warm.WarmJob(dead, ["python", "-m", "mpx.train"], {})
    assert job.wait() == -signal.SIGTERM


def test_a_starter_that_cannot_import_is_replaced_by_fresh_processes(tmp_path, monkeypatch):
    """Its job then says what is wrong."""
    warm.end()
    (tmp_path / "pytorch_lightning.py").write_text("raise ImportError('this Lightning is broken')")
    (tmp_path / "telling_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as by python -m
    command = [sys.executable, "-m", "mpx.train", *FEW, "+model.kwargs.act=pass"]
    assert warm.start(command, surroundings(tmp_path), will_train=True).wait() == 1
    assert "this Lightning is broken" in reported(tmp_path)["line"]
    warm.end()


NESTEROV = ["optimizer=sgd", "optimizer.nesterov=true"]  # without momentum, a mistake of a combination that one job has


def test_a_sweep_leaves_no_starter_and_needs_none_for_what_will_not_train(forked, tmp_path):
    """Such as mistakes, and runs that are there already."""
    (tmp_path / "telling_net.py").write_text(NET)
    ran = forked("-m", *FEW, "+model.kwargs.act=a,b", *NESTEROV, "optimizer.momentum=0.9")
    assert ran.code == 0, ran.err
    starters = {told(tmp_path, act)["parent"] for act in "ab"}
    assert len(starters) == 1
    assert not any(map(alive, starters))

    program = "import runpy; from mpx.sweep import warm; warm.Starter = None; runpy.run_module('mpx.train', run_name='__main__')"
    again = [sys.executable, "-c", program, "-m", *FEW, "+model.kwargs.act=a", *NESTEROV, "optimizer.momentum=0.9,0"]
    ran = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "is already completed" in ran.stdout
    assert "optimizer.nesterov=true needs optimizer.momentum above 0." in ran.stderr
    assert "TypeError" not in ran.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_killed_sweep_ends_its_job_in_order(tmp_path, number, code):
    (tmp_path / "telling_net.py").write_text(NET)
    sweep = Fork("-m", *FEW, "+model.kwargs.act=wait,b", folder=tmp_path)
    seen = told(tmp_path, "wait")
    sweep.send_signal(number)
    assert sweep.wait() == code
    ended_in_order(tmp_path, seen, lambda: sweep.err)


def test_ctrl_c_ends_a_sweep_and_its_job_in_order(tmp_path):
    """It reaches all processes of the terminal; libraries start threads, and a signal that the first does not take goes to another."""
    (tmp_path / "sitecustomize.py").write_text("import _thread, time\n_thread.start_new_thread(time.sleep, (600,))\n")
    (tmp_path / "telling_net.py").write_text(NET)
    sweep = subprocess.Popen(
        [sys.executable, "-m", "mpx.train", "-m", *FEW, "+model.kwargs.act=wait,b"],
        cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])},
    )  # fmt: skip
    seen = told(tmp_path, "wait")
    os.killpg(sweep.pid, signal.SIGINT)
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, errors
    ended_in_order(tmp_path, seen, lambda: errors)


def ended_in_order(folder, seen, errors):
    wait_for(lambda: not alive(seen["pid"]) and not alive(seen["parent"]), seconds=10)
    assert "Traceback" not in errors()
    assert "interrupted before training began; nothing was changed" in errors()
    assert not (folder / "told-b").exists()
    assert list(folder.glob("outputs/default/*")) == []
