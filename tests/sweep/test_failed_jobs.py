"""What a sweep does about a job that it cannot run, or that has failed before. test_sweep.py has fail_fast=true."""

import errno
import json
import shutil

import pytest
from few_steps import FEW_STEPS
from filelock import FileLock
from full_disk import full_disk
from processes import WAITING_NET, Fork, wait_for
from refused import assert_refused

from mpx.sweep import job_report
from mpx.sweep.job_report import STARTED, failed_now

NET = """
from pathlib import Path
from torch import nn

def Net(input_shape, num_classes, width):
    if width == 2 and not Path("mended").exists():
        raise ValueError("width 2 is broken")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, num_classes))
"""


@pytest.mark.slow
def test_a_failed_job_is_listed_until_it_is_retried(forked, tmp_path):
    (tmp_path / "moody_net.py").write_text(NET)
    sweep = ["-m", "model=custom", "model._target_=moody_net.Net", *FEW_STEPS, "+model.kwargs.width=2,8"]
    assert forked(*sweep).code == 1
    (tmp_path / "mended").touch()
    again = forked(*sweep)
    assert again.code == 1
    assert "failed earlier: ValueError: width 2 is broken. retry_failed=true tries it again." in again.err
    retried = forked(*sweep, "retry_failed=true")
    assert retried.code == 0, retried.err
    assert "job 1 was already completed: 2 of 2 done" in retried.out


def test_a_job_that_another_sweep_runs_is_in_use(train, tmp_path, monkeypatch):
    """The job's report is what the sweep's table and fail_fast=true go by."""
    first = train("model=mlp", *FEW_STEPS)
    (first.folder / "result.json").rename(tmp_path / "result.json")
    (folder,) = first.outputs.glob("*/*/seed0")
    monkeypatch.setenv("MPX_SWEEP_REPORT", str(tmp_path / "report.json"))
    with FileLock(folder / ".lock"):
        ran = train("model=mlp", *FEW_STEPS)
    assert (ran.code, ran.err) == (2, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["folder"], report["skipped"]) == ("in use", None, True)
    assert report["line"] == f"{folder} is in use by another process. The same command takes its result once it has finished."
    assert not failed_now(report | {"code": 2})
    shutil.move(tmp_path / "result.json", folder)
    assert train("model=mlp", *FEW_STEPS).code == 0
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "completed"
    monkeypatch.setenv("MPX_SWEEP_REPORT", str(tmp_path / "none" / "report.json"))
    assert train("model=mlp", *FEW_STEPS).code == 0, "the exit code says it"


@pytest.mark.slow
def test_two_sweeps_at_once_run_no_job_twice(tmp_path):
    """A job ends once two have begun, so the second sweep meets the first one's job, and trains the other."""
    (tmp_path / "waiting_net.py").write_text(WAITING_NET)
    words = ["-m", "model=custom", "model._target_=waiting_net.Net", "seed=0,1", "trainer.max_epochs=2", "trainer.accelerator=cpu"]
    first = Fork(*words, folder=tmp_path)
    wait_for(lambda: list(tmp_path.glob("saw-*")))
    second = Fork(*words, folder=tmp_path)
    assert (first.wait() in (0, 1), second.wait()) == (True, 1), "the first may find the second one's job in use, or finished"
    assert "job 0 in use" in second.err
    assert "failed" not in first.err + second.err
    again = Fork(*words, folder=tmp_path)
    assert again.wait() == 0, again.err
    assert len(list(tmp_path.glob("saw-*"))) == 2
    records = [json.loads(file.read_text()) for file in tmp_path.glob("outputs/default/*/seed*/result.json")]
    assert [(record["status"], record["environment"]["resumed_from_steps"]) for record in records] == [("completed", [])] * 2


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("hydra.sweep.dir=mine", "hydra.sweep.dir=mine is not empty, and a sweep removes its folder. Leave it out, or name a folder that"),
        ("hydra.sweep.dir=.", "hydra.sweep.dir=. is not empty, and"),
        ("hydra.sweep.dir=${output_dir}", "/outputs holds output_dir="),
        ("hydra.sweep.subdir=same", "hydra.sweep.subdir=same: mpx names the folders of a sweep's jobs. Leave it out."),
        ("hydra.job.chdir=true", "hydra.job.chdir=true: jobs would write into their folders of the sweep, which it removes. Leave"),
    ],
)
def test_a_sweep_removes_nothing_of_the_users(train, tmp_path, monkeypatch, word, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.txt").write_text("all that I have")
    ran = train("-m", "seed=0,1", *FEW_STEPS, word)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: hydra.")
    assert line in ran.err
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["mine", "mine/results.txt"]


def test_the_disk_is_full_when_a_sweep_begins(train):
    """There is room for a few bytes, and not for the file that Hydra writes first."""
    with full_disk(100):
        ran = train("-m", "seed=0,1", *FEW_STEPS)
    assert_refused(ran, "error: a file of this command cannot be written (File too large). Free some space, or write elsewhere.")


def test_a_single_job_is_not_told_of_as_many(forked):
    ran = forked("-m", "seed=0", "model=mlp", "optimizer=sgd", "optimizer.lr=1e30", *FEW_STEPS)
    assert ran.out.startswith("sweep of 1 job, 1 at once\n")
    assert "1 of 1 job did not complete:\n  job 0 (diverged): " in ran.err


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (["seed=0,1"], "2 more jobs have no report; the same command says what became of them"),
        (
            ["study=a,b", "hydra.sweep.dir=${output_dir}/sweep-${study}"],
            "2 more jobs have no report; the same command says what became of them",
        ),
        (["seed=0"], "1 more job has no report; the same command says what became of it"),
    ],
)
def test_the_disk_fills_up_while_a_sweep_runs(train, monkeypatch, words, lost):
    """The jobs are listed as lost, and the sweep still ends with its table and its exit code; also where jobs look for other folders."""
    write = job_report.write_whole

    def full(path, content):
        if path.name == STARTED:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content)

    monkeypatch.setattr(job_report, "write_whole", full)
    ran = train("-m", *words, *FEW_STEPS)
    assert ran.code == 1
    assert ran.err.splitlines() == [
        *(
            f"job {job} has no report ([Errno 28] No space left on device). The same command runs it, or takes its result."
            for job in range(int(lost[0]))
        ),
        lost,
    ]
