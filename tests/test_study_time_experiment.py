"""experiments/study_time: its script runs here at a tiny size."""

import csv
import sys
import time

import pytest
from experiment import script
from processes import Fork

study_time = script("study_time/run.py")


@pytest.mark.slow
def test_a_tiny_study(tmp_path, monkeypatch, capsys):
    """Its commands are forks."""

    def seconds(folder, *command):
        start = time.perf_counter()
        run = Fork(*command, folder=folder)
        assert run.wait() == 0, run.err
        return time.perf_counter() - start

    monkeypatch.setattr(study_time, "seconds", seconds)
    tiny = ["--tasks", "mlp_digits", "--precisions", "fp32,amp_bf16", "--seeds", "1", "--epochs", "1", "--share", "2"]
    monkeypatch.setattr(sys, "argv", ["run.py", *tiny, "--out", str(tmp_path)])
    study_time.main()
    with open(tmp_path / "results.csv", newline="") as file:
        one_by_one, shared = csv.DictReader(file)
    assert (one_by_one["share"], shared["share"], one_by_one["jobs"]) == ("1", "2", "2")
    assert one_by_one["task"] == "mlp_digits"
    assert float(one_by_one["wall_s"]) > 0 < float(shared["wall_s"])
    assert one_by_one["outcome"] == shared["outcome"]
    assert shared["verdict"] in capsys.readouterr().out
