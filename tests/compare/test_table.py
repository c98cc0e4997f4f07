"""results.csv keeps all of a run: its figures, its environment, how it was served, its predictions. A damaged
one is one line.
"""

import csv
import io

import pytest
from made_runs import AMP, CONTROL, compared, made, reread, served

from mpx.compare.table import differences_csv, read_results, results_csv
from mpx.errors import UserError
from mpx.runs.result import Predictions

WHOLE = [
    made(
        "amp_bf16-2of4 data.augment=crop,flip optimizer.lr=0.05",
        1,
        0.1 + 0.2,
        1e-7,
        label="my baseline",
        contents="ab12",
        compiled="default",
        metric="val/dice",
        metric_goal="max",
        loss_scale_final=65536.0,
        environment={
            "torch": "2.11",
            "git": {"commit": "1a"},
            "resumed_from_steps": [5],
            "command": "a,b \"c\"\n'd'",
        },
        served=(
            served("int8", sparse=True, host="torch 2.11, host 12"),
            served(exclusive=None, latency_by="by cpp"),
        ),
        predictions=Predictions("0a1b", 10, bytes([0b11100000, 0])),
    ),
    made(
        "fp32-dense",
        0,
        None,
        None,
        status="diverged",
        metrics={"test/loss": 1e300 / 1e290, "val/x y": -1.0},
        exclusive=None,
        cpu_used_by_others=0.125,
    ),
    made("=cmd()-dense", 2, emulated=True, model="+1", folder=None),
]


def test_a_run_reads_back_as_it_was():
    for run, again in zip(WHOLE, reread(WHOLE), strict=True):
        assert again == run
        assert (again.environment, again.served, again.predictions) == (
            run.environment,
            run.served,
            run.predictions,
        )


def test_a_column_that_no_run_fills_is_not_there():
    plain = results_csv(CONTROL).splitlines()[0].split(",")
    assert {"label", "metric_goal", "compiled", "looks", "served", "predictions"}.isdisjoint(plain)
    assert {"label", "served", "predictions", "val/x y"} <= set(results_csv(WHOLE).splitlines()[0].split(","))


DAMAGE = [
    (lambda text: text.replace("completed", "finished", 1), "line 2: .*status is 'finished'"),
    (lambda text: text.replace("0.95", "0.9x", 1), "line 2: test/accuracy=0.9x cannot be read"),
    (lambda text: text.replace("seed,", "sead,", 1), "which has no column seed, is not as mpx wrote it"),
    (lambda text: text[:-40], "cut off|fields, the header|unexpected end"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[message for _, message in DAMAGE])
def test_a_damaged_table_is_named_by_its_line(tmp_path, damage, message):
    path = tmp_path / "results.csv"
    path.write_text(damage(results_csv(CONTROL)))
    with pytest.raises(UserError, match=rf"results={path}, .*({message})"):
        read_results(path)


def test_the_table_of_differences():
    comparison = compared([*CONTROL, *AMP, made("o3-dense", 0, status="diverged", metrics={})])
    lost, fine = csv.DictReader(io.StringIO(differences_csv(comparison)))
    if fine["setting"] != "amp-dense":
        lost, fine = fine, lost
    decision = next(row.decision for row in comparison.groups[0].rows if row.setting == "amp-dense")
    assert (float(fine["difference"]), float(fine["low"]), fine["verdict"]) == (
        decision.difference,
        decision.low,
        "no loss",
    )
    assert (fine["control"], fine["seeds"], fine["margin"], fine["margin_is"], fine["method"]) == (
        "fp32-dense", "5", "0.01", "absolute", "paired t",
    )  # fmt: skip
    assert (lost["verdict"], lost["diverged"], lost["difference"]) == ("loss", "1", "")
