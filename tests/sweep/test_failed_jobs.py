"""What a sweep does about jobs that fail: retry_failed=true and fail_fast=true."""

import json

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


def test_a_failed_job_is_listed_until_it_is_retried(command, tmp_path):
    (tmp_path / "moody_net.py").write_text(NET)
    sweep = ["-m", *FEW, "+model.kwargs.width=2,4"]
    first = command(*sweep)
    assert first.code == 1
    assert sorted(statuses(first)) == ["completed", "failed"]
    assert "job 0 failed in " in first.out
    assert ": 0 of 2 done, 1 failed, 0 running, 1 left\n" in first.out
    assert ": 1 of 2 done, 1 failed, 0 running, 0 left\n" in first.out
    (tmp_path / "mended").touch()

    again = command(*sweep)
    assert again.code == 1
    assert sorted(statuses(again)) == ["completed", "failed"]
    assert "job 0 was already failed: 0 of 2 done, 1 failed" in again.out
    assert "failed earlier: ValueError: width 2 is broken. retry_failed=true tries it again." in again.err

    retried = command(*sweep, "retry_failed=true")
    assert retried.code == 0, retried.err
    assert statuses(retried) == ["completed", "completed"]
    assert "job 1 was already completed: 2 of 2 done" in retried.out


def test_fail_fast_starts_no_further_job(command, tmp_path):
    (tmp_path / "moody_net.py").write_text(NET)
    ran = command("-m", *FEW, "+model.kwargs.width=8,2,4,5,6", "fail_fast=true")
    assert ran.code == 1
    assert sorted(statuses(ran)) == ["completed", "failed"]
    assert "fail_fast=true: 3 more jobs were not started" in ran.err
    assert "1 of 2 jobs did not complete:" in ran.err
