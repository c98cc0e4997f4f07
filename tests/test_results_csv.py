"""Tables of experiments/: studies read back as they were written, and a row says on what it was measured."""

import csv
import runpy

import pytest
from documents import ROOT

from mpx.compare.table import read_results, results_csv

EXPERIMENTS = ROOT / "experiments"
NAMES = ("commit", "time", "host", "device", "driver", "torch")
TABLES = sorted(str(path.relative_to(EXPERIMENTS)) for path in EXPERIMENTS.glob("*/*.csv"))
csv.field_size_limit(2**24)


@pytest.mark.parametrize(
    "table", [table for table in TABLES if "optimizer_steps" in (EXPERIMENTS / table).open().readline()]
)
def test_a_study_is_written_as_it_was_read(table):
    text = (EXPERIMENTS / table).read_text(encoding="utf-8")
    assert results_csv(read_results(EXPERIMENTS / table)) == text


@pytest.mark.parametrize("study", ["decided", "digits_2of4", "grid", "pretrained"])
def test_predictions_are_those_of_their_run(study):
    """Those that are compared by accuracy; language models have none."""
    runs = read_results(EXPERIMENTS / study / "results.csv")
    shares = {run.predictions.accuracy: run.metrics["test/accuracy"] for run in runs if run.predictions}
    assert list(shares) == pytest.approx(list(shares.values()))


def test_a_script_writes_what_its_rows_come_from(tmp_path):
    collecting = runpy.run_path(str(EXPERIMENTS / "collecting.py"))
    assert collecting["ORIGIN"] == NAMES
    path = tmp_path / "results.csv"
    collecting["write"](
        path,
        ("model", "torch", "rate"),
        [{"model": "a", "rate": 1, "more": 2}, {"model": "b", "commit": "abc", "device": "X"}],
    )
    first, second = collecting["read"](path)
    assert list(first) == ["model", "rate", *NAMES]
    assert all(first[name] for name in NAMES if name != "driver")  # a machine without a GPU has none
    assert len(first["commit"].split()[0]) == 40
    assert str(ROOT) not in path.read_text()
    assert (second["commit"], second["device"], second["rate"]) == ("abc", "X", "")
