"""Looks: boundaries against published ones, the plan, and what compare says of a study that was made under
one.
"""

from dataclasses import asdict, replace

import numpy as np
import pytest
from made_runs import compared, only, record, reread, seeds, write

from mpx.compare import words
from mpx.compare.boundaries import bounds, obrien_fleming, pocock
from mpx.compare.collect import collect
from mpx.compare.comparison import Verdict
from mpx.compare.looks import SPENT, Plan, plan_of
from mpx.compare.table import differences_csv
from mpx.errors import UserError

FIFTHS = tuple(look / 5 for look in range(1, 6))
PLAN = Plan(margin=0.01, confidence=0.95, control="auto", max_seeds=8, looks=2)
NEAR = [0.0005, -0.0004, 0.0003, -0.0006]  # differences that four seeds decide
WIDE = [0.008, -0.009, 0.002, -0.006]  # that they do not
BASE = [0.95, 0.951, 0.952, 0.953, 0.9505, 0.9515, 0.9525, 0.9535, 0.951, 0.952]


def planned(setting, differences, plan=PLAN, **changed):
    values = [base + away for base, away in zip(BASE, differences, strict=False)]
    return seeds(setting, values, looks=plan.text, **changed)


def study(*runs, control=8):
    return compared([*planned("fp32-dense", [0.0] * control), *runs])


def decision(comparison, setting="amp-dense"):
    return only(comparison)[1][setting].decision


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        (obrien_fleming, (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
        (pocock, (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    ],
)
def test_bounds_are_those_of_lan_and_demets(spending, published):
    """One-sided 2.5 %, five looks, as ldbounds and gsDesign print them (sfLDOF, sfLDPocock)."""
    assert bounds(0.025, FIFTHS, spending) == pytest.approx(published, abs=2e-4)


def test_a_repeated_p_value_decides_as_the_level_of_its_look_does():
    plan = Plan(0.01, 0.95, "auto", 20, 5)
    for level in (0.05, 0.01):
        for look, at in enumerate(plan.levels(level), 1):
            assert plan.repeated(at, look) == pytest.approx(level, rel=1e-4)
    assert [plan.repeated(p, 3) for p in (0.0, 1e-30, 0.9, 1.0)] == [0.0, 1e-30, 1.0, 1.0]
    assert plan.repeated(0.001, 3) > 0.001 / SPENT


def test_what_is_decided_at_an_early_look_says_so():
    found = study(*planned("amp-dense", NEAR, speeds=[3100.0, 3110.0, 3090.0, 3105.0]))
    group, _ = only(found)
    assert decision(found).verdict == Verdict.NO_LOSS
    assert decision(found).p < decision(found).p_holm < 0.05
    assert group.train_verdict.endswith("at no loss of accuracy (4 seeds).")
    assert "difference 0.0 points (" in group.evidence, "the means are of the seeds that the look saw"
    assert words.decided(decision(found)) == "no loss, look 1 of 2, at 4 seeds"
    assert any(
        note.startswith("looks were planned at 4, 8 seeds; their tests have levels of 2.6, 2.5 %")
        for note in group.notes
    )


def test_an_undecided_setting_waits_for_the_next_look():
    later = study(*planned("amp-dense", [*WIDE, 0.001, 0.002]))
    first = study(*planned("amp-dense", WIDE))
    assert decision(later) == decision(first), "seeds between looks do not count"
    diverged = seeds("amp-dense", [None] * 6, looks=PLAN.text, status="diverged")[4:]
    assert differences_csv(study(*planned("amp-dense", WIDE), *diverged)) == differences_csv(first)
    assert decision(first).look.further == 8
    assert words.decided(decision(first)) == "undecided, look 1 of 2, at 4 seeds, the next at 8"
    assert "FP16 is undecided, the plan goes on to 8 seeds." in only(first)[0].train_verdict
    before = study(*planned("amp-dense", WIDE[:3]))
    assert words.decided(decision(before)) == "undecided, before the first of 2 looks, the next at 4"


def test_the_last_look_and_a_study_that_was_extended_by_hand():
    all_seeds = [*WIDE, -0.012, 0.011, -0.011, -0.009]
    last = study(*planned("amp-dense", all_seeds))
    extended = study(*planned("amp-dense", [*all_seeds, 0.0, 0.0]), control=10)
    assert words.decided(decision(last)) == "undecided, look 2 of 2, at 8 seeds, the last"
    assert decision(extended) == decision(last)


def test_a_comparison_that_is_not_the_planned_one_says_so():
    runs = [*planned("fp32-dense", [0.0] * 4), *planned("amp-dense", NEAR)]
    notes = only(compared(runs, margin=0.005))[0].notes
    assert any(
        note == "margin=0.005 is not the plan's, 0.01: choosing it afterwards weakens the guarantee"
        for note in notes
    )
    runs = [replace(run, metrics=run.metrics | {"test/loss": 1.0 + run.seed / 1e3}) for run in runs]
    how = {"control": "amp-dense", "metric": "test/loss", "margin_is": "absolute", "margin_for": "population"}
    notes = [note for note in only(compared(runs, **how))[0].notes if "is not the plan's" in note]
    assert [note.partition(":")[0] for note in notes] == [
        "control=amp-dense is not the plan's, auto",
        "metric=test/loss is not the plan's, test/accuracy",
        "margin_for=population is not the plan's, test_set",
    ]
    asked = [replace(run, looks=replace(PLAN, control="amp-dense").text) for run in runs]
    for control in ("amp-dense", "auto"):
        group, _ = only(compared(asked, control=control))
        assert group.control == "amp-dense"
        assert not [note for note in group.notes if "is not the plan's" in note]


def test_a_study_by_rounds_hardly_ever_misses_a_loss_of_the_margin():
    """Each setting goes on as long as compare names a further look. Together they err in at most 5 % of
    studies; of 150, in 13 at 2.5 standard errors. With a test at 5 % after each round they err in about a
    fifth.
    """
    plan, random, wrong, seeds_used = Plan(0.01, 0.95, "auto", 20, 5), np.random.default_rng(0), 0, []
    for _ in range(150):
        loss = {"fp32-dense": 0.0, "amp-dense": 0.01, "tf32-dense": 0.01}
        values = {
            name: 0.9 - less + 0.007 * random.standard_normal(plan.max_seeds) for name, less in loss.items()
        }
        counts = dict.fromkeys(values, plan.sizes[0])
        further = True
        while further:
            runs = [
                run
                for name, count in counts.items()
                for run in seeds(name, values[name][:count].tolist(), looks=plan.text)
            ]
            rows = only(compared(runs))[1]
            looks = {name: row.decision.look.further for name, row in rows.items() if row.decision}
            further = {name: count for name, count in looks.items() if count}
            counts |= further | ({"fp32-dense": max(further.values())} if further else {})
        wrong += any(row.decision.verdict is Verdict.NO_LOSS for row in rows.values() if row.decision)
        seeds_used += counts.values()
    assert wrong <= 13
    assert np.mean(seeds_used) < 0.75 * plan.max_seeds


def test_a_planned_control_is_known_by_its_label():
    plan = replace(PLAN, control="baseline")
    runs = [replace(run, label="baseline") for run in planned("fp32-dense", [0.0] * 4, plan)]
    for control in ("baseline", "auto"):
        notes = only(compared([*runs, *planned("amp-dense", NEAR, plan)], control=control))[0].notes
        assert not any("is not the plan's" in note for note in notes)


def test_two_plans_in_one_study_are_refused():
    other = Plan(0.02, 0.95, "auto", 8, 2)
    with pytest.raises(UserError, match=r"different plans of looks, .*0\.01.* and .*0\.02"):
        study(*planned("amp-dense", NEAR, other))


def test_the_plan_is_in_the_record_and_in_results_csv(tmp_path):
    for number in range(4):
        made = record(seed=number)
        made["config"]["until"] = asdict(PLAN)
        write(tmp_path / "fp32" / f"seed{number}", made)
    runs, left_out = collect(tmp_path)
    assert (plan_of(runs), left_out) == (PLAN, [])
    assert plan_of(reread(runs)) == PLAN
