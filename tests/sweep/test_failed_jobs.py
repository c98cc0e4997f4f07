"""What a sweep does about jobs that fail: retry_failed=true and fail_fast=true."""

import json
import shutil

import pytest
from few_steps import FEW_STEPS
from filelock import FileLock

from mpx.sweep.job_report import failed_now

FEW = ["model=custom", "model._target_=moody_net.Net", "trainer.max_epochs=1", "trainer.limit_train_batches=3", "trainer.warmup_steps=1"]
NET = """
from pathlib import Path
from torch import nn

def Net(input_shape, num_classes, width):
    if width == 2 and not Path("mended").exists():
        raise ValueError("width 2 is broken")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, num_classes))
"""


def statuses(ran):
    return [json.loads((path / "result.json").read_text())["status"] for path in ran.folders]


@pytest.mark.slow  # test_sweep.py has fail_fast, and test_failures.py retry_failed
def test_a_failed_job_is_listed_until_it_is_retried(forked, tmp_path):
    """And with fail_fast=true none is started after it."""
    (tmp_path / "moody_net.py").write_text(NET)
    first = forked("-m", *FEW, "+model.kwargs.width=8,2,4,5", "fail_fast=true")
    assert first.code == 1
    assert sorted(statuses(first)) == ["completed", "failed"]
    assert "fail_fast=true: 2 more jobs were not started" in first.err
    assert "1 of 2 jobs did not complete:" in first.err
    assert ": 1 of 4 done, 0 failed, 0 running, 3 left" in first.out
    assert "job 1 failed in " in first.out
    (tmp_path / "mended").touch()

    sweep = ["-m", *FEW, "+model.kwargs.width=2,8"]
    again = forked(*sweep)
    assert again.code == 1
    assert sorted(statuses(again)) == ["completed", "failed"]
    assert "job 0 was already failed: 0 of 2 done, 1 failed" in again.out
    assert "failed earlier: ValueError: width 2 is broken. retry_failed=true tries it again." in again.err

    retried = forked(*sweep, "retry_failed=true")
    assert retried.code == 0, retried.err
    assert statuses(retried) == ["completed", "completed"]
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
