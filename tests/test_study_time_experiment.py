"""experiments/study_time: its script runs here at a tiny size."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments" / "study_time" / "run.py"


@pytest.mark.slow
def test_a_tiny_study(tmp_path):
    tiny = ["--tasks", "mlp_digits", "--precisions", "fp32,amp_bf16", "--seeds", "1", "--epochs", "1", "--share", "2"]
    tiny += ["--out", str(tmp_path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *tiny], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "results.csv", newline="") as file:
        one_by_one, shared = csv.DictReader(file)
    assert (one_by_one["share"], shared["share"], one_by_one["jobs"]) == ("1", "2", "2")
    assert one_by_one["task"] == "mlp_digits"
    assert float(one_by_one["wall_s"]) > 0 < float(shared["wall_s"])
    assert one_by_one["outcome"] == shared["outcome"]
    assert shared["verdict"] in done.stdout
