"""served.csv, beside results.csv: written and read without loss, and one line for a file that mpx did not write."""

from dataclasses import replace

import pytest
from made_runs import AMP, CONTROL, compared, only, served

from mpx.compare import results, served_csv
from mpx.compare.served_csv import with_served
from mpx.errors import UserError

WAYS = (
    served("fp16", 5000.0, value=0.1 + 0.2, latency_by="dense by eager", asked="format=fp16 weights=auto"),
    served("int8", 1 / 3, sparse=True, host="torch 2.15.0", exclusive=None, accurate=False),
)
RUNS = [replace(run, served=WAYS) for run in CONTROL]


def test_without_loss(tmp_path):
    (tmp_path / "served.csv").write_text(served_csv.to_csv([*RUNS, *AMP]))
    bare = results.from_csv(results.to_csv([*RUNS, *AMP]), "results.csv")
    again = with_served(bare, tmp_path / "results.csv")
    assert [run.served for run in again] == [run.served for run in (*RUNS, *AMP)]
    assert only(compared(again))[0].serve_verdict == only(compared([*RUNS, *AMP]))[0].serve_verdict != ""


def test_the_columns_of_results_csv_stay(tmp_path):
    assert results.to_csv(RUNS) == results.to_csv(CONTROL)


def test_without_the_file_nothing_is_known_of_serving(tmp_path):
    assert with_served(CONTROL, tmp_path / "results.csv") == CONTROL


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("device", "place"),
        ("fp16", "fp15"),
        ("fp16", "\x1b[2J"),
        ("5000.0", "1e308"),
        ("5000.0", "fast"),
        ("5000.0", ""),
        (",true,", ",perhaps,"),
        ("dense by eager", "\x1b[2J"),
        ("weights=auto", "\x1b[2J"),
        (",256,", ",-1,"),
        ("graph", ""),
    ],
)
def test_a_file_that_mpx_did_not_write_is_one_line(tmp_path, old, new):
    (tmp_path / "served.csv").write_text(served_csv.to_csv(RUNS).replace(old, new))
    with pytest.raises(UserError, match=r"served\.csv was not written by mpx\.compare \(\w+: .*\)\. Remove it") as caught:
        with_served(CONTROL, tmp_path / "results.csv")
    assert str(caught.value).isprintable()
