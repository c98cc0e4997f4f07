"""Sweeps as a user starts them: fresh processes, failures that stop nothing, a table, and an exit code."""

import json
import shutil

import pytest

FEW = ["model=mlp", "trainer.max_epochs=1", "trainer.limit_train_batches=3", "trainer.warmup_steps=1", "trainer.progress=off"]


def statuses(ran):
    return {f"{path.parent.name}/{path.name}": json.loads((path / "result.json").read_text())["status"] for path in ran.folders}


def test_one_job_fails_and_the_others_go_on(forked):
    """Without momentum a job is refused; lr=1e30 diverges; 0.01 completes."""
    words = ["-m", *FEW, "optimizer=sgd", "optimizer.nesterov=true"]
    ran = forked(*words, "optimizer.momentum=0,0.9", "optimizer.lr=1e30,0.01")
    assert ran.code == 1
    assert sorted(statuses(ran).values()) == ["completed", "diverged"]
    assert "error: optimizer.nesterov=true needs optimizer.momentum above 0." in ran.err
    assert "job 2 diverged: the loss became infinite or NaN by step" in ran.err
    assert "3 of 4 jobs did not complete:" in ran.err
    assert ran.err.index("job 2 diverged") < ran.err.index("3 of 4 jobs")  # shown when it happens
    assert "Traceback" not in ran.err
    for word in ("job 0: ", "job 2: ", "sweep", "optimizer.lr=0.01", "completed"):
        assert word in ran.out

    again = forked(*words, "optimizer.momentum=0.9,0", "optimizer.lr=0.01,1e30,0.02", "fail_fast=true")
    assert again.code == 1
    assert again.out.count("is already completed; nothing to do") == 1
    assert "diverged earlier: the loss became infinite or NaN by step" in again.err
    assert "2 of 4 jobs did not complete:" in again.err
    assert "job 1 was already diverged: 1 of 6 done, 1 failed, 0 running, 4 left\n" in again.out
    assert "fail_fast=true: 2 jobs not started" in again.err


@pytest.mark.slow
def test_started_again_a_sweep_skips_what_is_finished(forked):
    """Also where the study was carried to another machine without its checkpoints; a run that was cut off there begins again."""
    first = forked("-m", *FEW, "seed=0,1,2")
    assert first.code == 0
    for path in first.folders:
        shutil.rmtree(path / "checkpoints")
    (first.folders[2] / "result.json").unlink()
    before = [(path / "result.json").read_text() for path in first.folders[:2]]
    again = forked("-m", *FEW, "seed=0,1,2")
    assert again.code == 0
    assert again.out.count("is already completed; nothing to do") == 2
    assert [path.name for path in again.folders] == ["seed0", "seed1", "seed2"]
    assert list(statuses(again).values()) == ["completed"] * 3
    assert [(path / "result.json").read_text() for path in again.folders[:2]] == before
