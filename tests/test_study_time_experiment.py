"""experiments/study_time: its script runs here at a tiny size."""

import csv
import runpy
import sys
import time
from pathlib import Path

import pytest
from processes import Fork

SCRIPT = Path(__file__).parents[1] / "experiments" / "study_time" / "run.py"
TINY = "--tasks mlp_digits --precisions fp32,amp_bf16 --seeds 2 --epochs 1 --share 2 --out"


@pytest.mark.slow
def test_a_tiny_study(tmp_path, monkeypatch, capsys):
    """Its commands are forks, which need not import PyTorch."""

    def seconds(folder, *command):
        start = time.perf_counter()
        run = Fork(*command, folder=folder)
        assert run.wait() == 0, run.err
        return time.perf_counter() - start

    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *TINY.split(), str(tmp_path)])
    main = runpy.run_path(str(SCRIPT))["main"]
    main.__globals__["seconds"] = seconds
    main()
    with open(tmp_path / "results.csv", newline="") as file:
        one_by_one, shared = csv.DictReader(file)
    assert (one_by_one["share"], shared["share"], one_by_one["jobs"]) == ("1", "2", "4")
    assert one_by_one["task"] == "mlp_digits"
    assert float(one_by_one["wall_s"]) > 0 < float(shared["wall_s"])
    assert one_by_one["outcome"] == shared["outcome"]
    assert shared["verdict"] in capsys.readouterr().out
