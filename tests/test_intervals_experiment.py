"""experiments/intervals: its script runs here at a tiny size, and its card is what its table says."""

import csv
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1] / "experiments" / "intervals"


def read(folder):
    with open(folder / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def run(*words):
    done = subprocess.run([sys.executable, str(HERE / "run.py"), *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tiny_simulation(tmp_path):
    out = run("coarse", "--studies=20", f"--out={tmp_path}")
    assert "no README.md yet: fine-seeds, " in out
    found = read(tmp_path)
    assert [(row["seeds"], row["interval"]) for row in found[:3]] == [("3", "seeds"), ("3", "test set"), ("3", "population")]
    assert len(found) == 9
    wide = [row for row in found if row["interval"] == "population"]
    assert all(float(row["covers_population"]) >= 0.8 and row["shown"] == "1.0000" for row in wide)


def test_the_card_is_that_of_the_table(tmp_path):
    (tmp_path / "results.csv").write_bytes((HERE / "results.csv").read_bytes())
    run("--card", f"--out={tmp_path}")
    assert (tmp_path / "README.md").read_text() == (HERE / "README.md").read_text()


def test_the_committed_coverage_is_near_95_percent():
    found = read(HERE)
    assert {row["studies"] for row in found} == {"10000"}
    assert not any(int(row["zero_width"]) for row in found)
    assert min(float(row["covers_population"]) for row in found if row["interval"] == "population") > 0.945
    assert min(float(row["covers_test_set"]) for row in found if row["interval"] == "test set") > 0.94
    assert max(float(row["false_no_loss"]) for row in found if row["interval"] == "population") < 0.055
