"""Tables of measurements in experiments/ say of which commit, when, and on what a row was measured, but for
the older ones named here.
"""

import csv
import json
import runpy
from datetime import datetime

import pytest
from documents import ROOT

from mpx.compare.table import read_results, results_csv

EXPERIMENTS = ROOT / "experiments"
NAMES = ("commit", "time", "host", "device", "driver", "torch")
# measured before the scripts recorded it, which nobody can add; a table that is measured again leaves this
# list
BEFORE = {
    "ceilings/conv.csv", "recipe/results.csv", "served/accuracy.csv", "served/speed.csv",
    "sparsity_pilot/results.csv",
}  # fmt: skip
NO_HOST = {  # studies with older rows, which name the processor only
    "batch_size/results.csv", "loss_scaling/results.csv", "pretrained/earlier.csv", "tuning/results.csv",
}  # fmt: skip
HOSTS_SINCE = "2026-11-26"  # all later runs name it
# computed: the same numbers on any machine
ANYWHERE = {"intervals/results.csv", "looks/results.csv"}
BEFORE_OF_SPEED = {"sparse", "numerics", "whole"}  # sections of speed/results.csv, likewise
TABLES = sorted(str(path.relative_to(EXPERIMENTS)) for path in EXPERIMENTS.glob("*/*.csv"))
csv.field_size_limit(2**24)


def rows_of(table):
    """Those that count. The tables of mpx.compare have the environment of a run in one column."""
    with open(EXPERIMENTS / table, newline="") as file:
        rows = list(csv.DictReader(file))
    if "environment" in rows[0]:
        environments = [json.loads(row["environment"]) for row in rows]
        older = table in NO_HOST
        hosts = [
            e.get("host") or (e["cpu"] if older and e["started_at"] < HOSTS_SINCE else None)
            for e in environments
        ]
        return [
            {"commit": e["git"], "time": e["started_at"], "host": host, "device": "-", "torch": e["torch"]}
            for e, host in zip(environments, hosts, strict=True)
        ]
    if table == "speed/results.csv":
        rows = [row for row in rows if row["section"] not in BEFORE_OF_SPEED]
    return [row for row in rows if not row.get("rejected")]


def says(row):
    """Whether the row says all; a machine without a GPU has no driver."""
    if not all(row.get(name) for name in NAMES if name != "driver"):
        return False
    return datetime.fromisoformat(row["time"]).utcoffset() is not None


@pytest.mark.parametrize("table", [table for table in TABLES if table not in BEFORE | ANYWHERE])
def test_each_row_says_where_it_comes_from(table):
    assert [row for row in rows_of(table) if not says(row)] == []


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


def test_the_list_of_older_tables_holds_no_other():
    assert set(TABLES) >= BEFORE | NO_HOST
    assert [table for table in BEFORE if all(map(says, rows_of(table)))] == []
    for table in NO_HOST:
        with open(EXPERIMENTS / table, newline="") as file:
            assert not all(json.loads(row["environment"]).get("host") for row in csv.DictReader(file))


def test_the_list_says_how_many_tables_are_older():
    words = " ".join((EXPERIMENTS / "README.md").read_text(encoding="utf-8").split())
    left_out = f"{len(BEFORE)} older tables and {len(BEFORE_OF_SPEED)} sections of [speed](speed)"
    rest = f"{left_out}; {len(NO_HOST)} older studies name the processor only"
    assert f"Measured rows name their commit, time and host, but for {rest}" in words


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
    assert says(first)
    assert len(first["commit"].split()[0]) == 40
    assert str(ROOT) not in path.read_text()
    assert (second["commit"], second["device"], second["rate"]) == ("abc", "X", "")
