"""A project is compared by its own metric, in the direction that its runs say, with a relative or an absolute margin."""

from dataclasses import replace
from itertools import product

import pytest
from made_runs import compared, only, record, seeds, write

from mpx.compare.collect import collect
from mpx.compare.comparison import Verdict
from mpx.compare.metric import check_metric, choose_metric
from mpx.compare.results import from_csv, to_csv
from mpx.compare.rules import wrong
from mpx.errors import UserError
from mpx.settings.compare import check_compare

CONTROL, SPREAD = 2.0, (-0.01, -0.005, 0.0, 0.005, 0.01)


def runs(change, name="val/fid", goal="min", around=CONTROL):
    """A control around `around`, and a setting whose values are higher by `change`."""
    made = []
    for setting, mean in (("fp32-dense", around), ("amp-dense", around + change)):
        made += seeds(setting, [mean + away for away in SPREAD], metric=name)
    return [replace(run, metric=name, metric_goal=goal) for run in made]


def decided(found, **changed):
    group, rows = only(compared(found, **{"metric": "auto"} | changed))
    return group, rows["amp-dense"].decision.verdict


@pytest.mark.parametrize(
    ("change", "goal", "margin", "margin_is", "verdict"),
    [
        (+0.1, "min", 0.02, "auto", Verdict.LOSS),  # 2 % of 2.0 is 0.04
        (+0.1, "min", 0.10, "auto", Verdict.NO_LOSS),
        (+0.1, "min", 0.09, "absolute", Verdict.LOSS),
        (-0.1, "min", 0.02, "auto", Verdict.NO_LOSS),
        (-0.1, "max", 0.09, "auto", Verdict.LOSS),  # absolute
        (-0.1, "max", 0.09, "relative", Verdict.NO_LOSS),
        (+0.1, "max", 0.02, "auto", Verdict.NO_LOSS),
    ],
)
def test_the_direction_and_the_margin(change, goal, margin, margin_is, verdict):
    group, found = decided(runs(change, goal=goal), margin=margin, margin_is=margin_is)
    assert (group.metric.name, found) == ("val/fid", verdict)
    assert ("no worse fid" in group.train_verdict) == (goal == "min")


@pytest.mark.parametrize("name", ["val/fid", "own/fid"])
def test_a_validation_of_an_earlier_step_is_said(name):
    """Where it is that by which settings are compared."""
    found = [replace(run, environment={"validated_at_step": [12, 14]} if run.seed == 3 else {}) for run in runs(0.1, name)]
    said = f"all settings: {name.replace('/', ' ')} of 1 of 5 completed runs is of weights from before the last step, as step 12 of 14"
    assert said in decided(found)[0].notes
    (again,) = (run for run in from_csv(to_csv(found[3:4]), "results.csv"))
    assert again.environment == found[3].environment
    tested = [replace(run, metric=None, metrics=run.metrics | {"test/accuracy": 0.9 + run.seed / 100}) for run in found]
    assert not [note for note in decided(tested)[0].notes if "last step" in note]


@pytest.mark.parametrize(
    ("name", "field", "said"),
    [
        ("val/fid", {"changed_after_validation": True}, "is of weights that the training's end replaced before the test"),
        ("train/fid", {"train_means_from_step": 7}, "is the mean over a part of the last epoch, as from step 7 on"),
    ],
)
def test_a_value_of_another_moment_is_said(name, field, said):
    found = [replace(run, environment=field) for run in runs(0.1, name)]
    assert f"all settings: {name.replace('/', ' ')} of 5 of 5 completed runs {said}" in decided(found)[0].notes
    (again,) = (run for run in from_csv(to_csv(found[:1]), "results.csv"))
    assert again.environment == found[0].environment


@pytest.mark.parametrize(("change", "verdict"), [(+0.1, Verdict.LOSS), (-0.1, Verdict.NO_LOSS)])
def test_a_relative_margin_of_negative_values(change, verdict):
    """5 % of −1.0 is 0.05, which a loss exceeds in the direction that the metric should not go."""
    assert decided(runs(change, around=-1.0), margin=0.05)[1] == verdict


@pytest.mark.parametrize(("around", "share"), [(0.02, "50 %"), (0.005, "more than all"), (0.2, None)])
def test_a_default_margin_that_is_much_of_the_metric_is_said(around, share):
    """A point of an accuracy, and most of a recall of 0.02."""
    found = [replace(run, metrics={"val/recall": around}, metric="val/recall", metric_goal="max") for run in runs(0.0)]
    notes = [note for note in decided(found, margin=0.01)[0].notes if "default margin" in note]
    said = f"the default margin of 0.01 is {share} of fp32-dense's val recall; choose one that fits by margin="
    assert notes == ([said] if share else [])
    assert not [note for note in decided(found, margin=0.009)[0].notes if "default margin" in note]


def test_a_relative_margin_of_values_around_zero_decides_nothing():
    """A share of the sizes of 1.3 and −1.3 would allow a hundred times the share of their mean."""
    far = [mean + away for mean, away in product((1.3, -1.28), SPREAD[:3])]
    found = [replace(run, metric="val/nll", metric_goal="min") for run in seeds("fp32-dense", far, metric="val/nll")]
    found += [replace(run, precision="amp", metrics={"val/nll": run.metrics["val/nll"] + 0.005 + run.seed / 1e4}) for run in found]
    group, verdict = decided(found)
    assert verdict == Verdict.UNDECIDED
    assert any(note.startswith("the control's val nll is below and above zero, and a share of it is no margin") for note in group.notes)
    assert decided(found, margin_is="absolute")[1] == Verdict.NO_LOSS


@pytest.mark.parametrize("name", ["test/accuracy", "val/perplexity"])
def test_a_goal_against_what_mpxs_own_metrics_mean_is_refused(name):
    runs = seeds("fp32-dense", [0.9, 0.91], metric=name)
    goal, should = ("min", "rise") if name == "test/accuracy" else ("max", "fall")
    with pytest.raises(UserError, match=f"metric_goal={goal}, but {name} should {should}. Leave metric_goal out."):
        choose_metric(runs, wanted=name, goal=goal, margin_is="auto")
    recorded = [replace(run, metric=name, metric_goal=goal) for run in runs]  # as an attack's accuracy should fall
    assert choose_metric(recorded, wanted=name, goal=goal, margin_is="auto").sign == (-1 if goal == "min" else 1)


def test_the_user_may_choose_another_metric_and_its_direction():
    found = [replace(run, metrics=run.metrics | {"val/other": run.seed + 1.0}) for run in runs(0.1)]
    group, _ = decided(found, metric="val_other", metric_goal="max")
    assert group.metric.sign == 1
    assert not any("since no run here has" in note for note in group.notes)
    with pytest.raises(
        UserError, match=r"metric=val/other: no run says whether it should rise or fall. Add metric_goal=max or metric_goal=min"
    ):
        decided(found, metric="val/other")
    with pytest.raises(UserError, match=r"metric=val/othr: no run has it. Did you mean val/other\? There are: val/fid, val/other"):
        check_metric(found, "val/othr")
    mixed = [replace(run, metric_goal="max") if run.seed == 1 else run for run in found]
    with pytest.raises(UserError, match="some runs say that it should rise, others that it should fall"):
        decided(mixed)


def test_the_direction_of_the_chosen_metric_is_not_that_of_one_in_its_place():
    """A model without the metric is compared by its accuracy, which should rise all the same."""
    other = [replace(run, model="bert", metric=None, metric_goal=None) for run in runs(-0.1, "test/accuracy", around=0.9)]
    groups = compared([*runs(-0.1), *other], metric="val/fid", metric_goal="min", margin=0.02).groups
    assert [(group.metric.name, group.rows[1].decision.verdict) for group in groups] == [
        ("test/accuracy", Verdict.LOSS), ("val/fid", Verdict.NO_LOSS),
    ]  # fmt: skip


def test_results_csv_keeps_metric_and_direction():
    found = runs(0.1)
    again = from_csv(to_csv(found), "results.csv")
    assert [(run.metric, run.metric_goal, run.metrics) for run in again] == [(run.metric, run.metric_goal, run.metrics) for run in found]
    assert "metric_goal" not in to_csv(seeds("fp32-dense", [0.9]))


def test_an_accuracy_in_percent_is_no_damage_in_a_project():
    (run,) = seeds("fp32-dense", [95.0])
    assert wrong(run) == ("test/accuracy", 95.0)
    assert wrong(replace(run, metric="test/accuracy", metric_goal="max")) == ("test/accuracy", 95.0)  # as mpx's own tasks declare it
    assert wrong(replace(run, own_task=True)) is None
    run = replace(run, own_task=True)
    assert from_csv(to_csv([run]), "results.csv") == [run]
    assert wrong(replace(run, metric="val dice", metric_goal="max")) == ("metric", "val dice")
    assert wrong(replace(run, metric="val/dice", metric_goal="up", metrics={})) == ("metric_goal", "up")


@pytest.mark.parametrize("config", [{"module": {"_target_": "a.B"}, "metric": None}, {"loop": "own"}])
def test_a_project_in_percent_that_names_no_metric_is_judged(tmp_path, config):
    for precision, seed in product(("fp32", "amp"), range(3)):
        one = record(precision=precision, seed=seed, accuracy=93.1 + 0.1 * seed) | {"metric": None}
        one["config"] |= config
        write(tmp_path / f"{precision}/seed{seed}", one)
    found, left_out = collect(tmp_path)
    assert left_out == []
    group, verdict = decided(found, margin=1)
    assert (group.metric.name, verdict) == ("test/accuracy", Verdict.NO_LOSS)
    assert any("above 1, so no fraction: the margin of 1 is in its own unit" in note for note in group.notes)


def test_a_margin_in_the_metrics_own_unit_may_be_large():
    given = {"study": "s", "results": None, "margin_is": "absolute"}
    check_compare(given | {"margin": 1})
    for words, said in (
        ({"margin": 0}, "above 0"),
        ({"margin": 1, "margin_is": "auto"}, "below 1, or any above 0 with margin_is=absolute"),
    ):
        with pytest.raises(UserError, match=said):
            check_compare(given | words)


def test_a_task_of_mpx_in_percent_is_damaged(tmp_path):
    write(tmp_path / "fp32/seed0", record(accuracy=93.1) | {"metric": {"name": "test/accuracy", "goal": "max"}})
    assert "test/accuracy is 93.1" in collect(tmp_path)[1][0][1]
