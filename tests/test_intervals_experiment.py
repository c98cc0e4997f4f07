"""experiments/intervals: its script runs here at a tiny size."""

from experiment import script


def test_a_small_simulation(monkeypatch):
    intervals = script("intervals/run.py")
    monkeypatch.setattr(intervals, "STUDIES", 20)
    monkeypatch.setattr(intervals, "CASES", {"coarse": intervals.CASES["coarse"]})
    found = list(intervals.simulate())
    assert [(row["seeds"], row["interval"]) for row in found[:2]] == [(3, "test set"), (3, "population")]
    assert len(found) == 6
    wide = [row for row in found if row["interval"] == "population"]
    assert all(float(row["covers_population"]) >= 0.8 and float(row["shown"]) >= 0.8 for row in wide)
