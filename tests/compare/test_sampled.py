"""What predictions on single test samples add to a comparison: an interval for the population, ties that have
one, a margin for it.
"""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from made_runs import compared, made, only, seeds

from mpx.compare.comparison import POPULATION, Method, Verdict
from mpx.compare.population import scatter
from mpx.compare.table import differences_csv
from mpx.render.comparison_tables import print_comparison
from mpx.render.html import html_report
from mpx.render.report import markdown_report
from mpx.runs.result import Predictions
from mpx.system.printing import signed

SAMPLES = 1000


def predicted(setting, right):
    """One run per row of `right`, [seeds, samples], with its predictions and the accuracy that they give."""
    speed = 3000.0 if setting.startswith("amp") else 1000.0
    runs = seeds(setting, right.mean(axis=1).tolist(), [speed + seed for seed in range(len(right))])
    return [
        replace(run, predictions=Predictions("0a1b2c3d", right.shape[1], np.packbits(row).tobytes()))
        for run, row in zip(runs, right, strict=True)
    ]


def drawn(seed, lost=0.0, count=5):
    """Easy and hard samples; a share of `lost` of them is wrong for every seed."""
    draw = np.random.default_rng(0)
    easy, gone = draw.beta(8, 0.5, SAMPLES), draw.random(SAMPLES) < lost
    return (np.random.default_rng(seed).random((count, SAMPLES)) < easy) & ~gone


C, S = drawn(1), drawn(2, lost=0.005)
STUDY = [*predicted("fp32-dense", C), *predicted("amp-dense", S)]


def amp(runs=STUDY, **how):
    group, rows = only(compared(runs, **how))
    return group, rows["amp-dense"].decision


def test_the_population_has_an_interval_beside_that_of_the_test_set():
    group, found = amp(margin=0.03)
    assert (found.population.low, found.population.high) == scatter(
        S.astype(np.uint8), C.astype(np.uint8), paired=True
    ).interval(0.95)
    assert found.population.low < found.low < found.difference < found.high < found.population.high
    assert found.method == Method.PAIRED
    assert group.evidence.endswith("; margin 3.")


def test_a_margin_for_the_population_takes_more_than_one_for_the_test_set():
    lost = -np.mean(S.mean(axis=1) - C.mean(axis=1))
    margin = lost + 0.006
    group, here = amp(margin=margin)
    assert here.verdict == Verdict.NO_LOSS
    group, there = amp(margin=margin, margin_for=POPULATION)
    assert (there.verdict, there.method) == (Verdict.UNDECIDED, Method.CROSSED)
    assert (there.low, there.high) == (here.low, here.high)
    assert "FP16 is undecided, it takes more seeds or more test samples." in group.train_verdict
    group, wide = amp(margin=0.05, margin_for=POPULATION)
    assert (wide.verdict, wide.method) == (Verdict.NO_LOSS, Method.CROSSED)
    low = signed(100 * wide.population.low, ".1f")
    assert f" points ({low} to 0.0 for the population); margin 5." in group.evidence
    losing = [*predicted("fp32-dense", C), *predicted("amp-dense", drawn(2, lost=0.2))]
    assert amp(losing, margin=0.05, margin_for=POPULATION)[1].verdict == Verdict.LOSS


REASONS = {
    "no file": (
        [replace(run, predictions=None) for run in predicted("amp-dense", S)],
        "some of its runs have no predictions.json",
    ),
    "one without": (
        [*predicted("amp-dense", S)[1:], made("amp-dense", 0, S[0].mean())],
        "some of its runs have no predictions.json",
    ),
    "other set": (
        [
            replace(run, predictions=replace(run.predictions, test_set="ffffffff"))
            for run in predicted("amp-dense", S)
        ],
        "the runs were tested on different samples",
    ),
    "one seed": (predicted("amp-dense", S[:1]), "it takes at least 2 seeds of each"),
}


@pytest.mark.parametrize(("runs", "reason"), REASONS.values(), ids=REASONS)
def test_a_margin_for_the_population_without_predictions_decides_nothing_and_says_why(runs, reason):
    group, found = amp([*predicted("fp32-dense", C), *runs], margin=0.05, margin_for=POPULATION)
    assert (found.verdict, found.method, found.p) == (Verdict.UNDECIDED, Method.UNSAMPLED, None)
    assert f"FP16 is undecided, {reason}" in group.train_verdict


def test_every_report_shows_both(capsys):
    comparison = compared(STUDY)
    decision = amp()[1]
    text = f"−{-decision.population.low:.4f} to +{decision.population.high:.4f}"
    print_comparison(comparison)
    assert text in capsys.readouterr().out
    assert text in markdown_report(comparison, [()])
    assert text in html_report(comparison, [()], {})
    (row,) = csv.DictReader(io.StringIO(differences_csv(comparison)))
    assert [float(row[name]) for name in ("low", "high", "population_low", "population_high")] == [
        decision.low, decision.high, decision.population.low, decision.population.high,
    ]  # fmt: skip
    assert (row["setting"], row["verdict"], row["margin_for"], row["population_reason"]) == (
        "amp-dense",
        decision.verdict,
        "test_set",
        "",
    )
    assert (float(row["margin"]), row["margin_is"], float(row["confidence"])) == (0.01, "absolute", 0.95)
    assert (row["seeds"], row["diverged"]) == (str(len(STUDY) // 2), "0")
    broken = compared([*STUDY[:-1], replace(STUDY[-1], status="diverged", metrics={})])
    (row,) = csv.DictReader(io.StringIO(differences_csv(broken)))
    assert (row["seeds"], row["diverged"]) == (str(len(STUDY) // 2), "1")
    assert "for the population" not in markdown_report(
        compared([replace(run, predictions=None) for run in STUDY]), [()]
    )
