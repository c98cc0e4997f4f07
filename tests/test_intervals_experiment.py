"""experiments/intervals: its script runs here at a tiny size."""

import csv

from experiment import EXPERIMENTS, script


def read(folder):
    with open(folder / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_small_simulation(monkeypatch):
    intervals = script("intervals/run.py")
    monkeypatch.setattr(intervals, "STUDIES", 20)
    monkeypatch.setattr(intervals, "CASES", {"coarse": intervals.CASES["coarse"]})
    found = list(intervals.simulate())
    assert [(row["seeds"], row["interval"]) for row in found[:2]] == [(3, "test set"), (3, "population")]
    assert len(found) == 6
    wide = [row for row in found if row["interval"] == "population"]
    assert all(float(row["covers_population"]) >= 0.8 and float(row["shown"]) >= 0.8 for row in wide)


def test_the_committed_coverage_is_near_95_percent():
    found = read(EXPERIMENTS / "intervals")
    assert {row["studies"] for row in found} == {"10000"}
    assert not any(int(row["zero_width"]) for row in found)
    assert min(float(row["covers_population"]) for row in found if row["interval"] == "population") > 0.945
    assert min(float(row["covers_test_set"]) for row in found if row["interval"] == "test set") > 0.94
    assert max(float(row["false_no_loss"]) for row in found if row["interval"] == "population") < 0.055
