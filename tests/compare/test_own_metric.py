"""A project is compared by its own metric, in the direction that its runs say, with a relative or an absolute
margin.
"""

from dataclasses import replace
from itertools import product

import pytest
from made_runs import compared, only, seeds

from mpx.compare.comparison import Verdict
from mpx.errors import UserError

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
    assert ("with no worse fid" in group.train_verdict) == (goal == "min")


def test_a_relative_margin_of_values_around_zero_is_refused():
    """A share of the sizes of 1.3 and −1.3 would allow a hundred times the share of their mean."""
    far = [mean + away for mean, away in product((1.3, -1.28), SPREAD[:3])]
    found = [
        replace(run, metric="val/nll", metric_goal="min")
        for run in seeds("fp32-dense", far, metric="val/nll")
    ]
    found += [
        replace(run, precision="amp", metrics={"val/nll": run.metrics["val/nll"] + 0.005 + run.seed / 1e4})
        for run in found
    ]
    with pytest.raises(UserError, match=r"metric=val/nll has values below and above .* margin_is=absolute"):
        decided(found)
    assert decided(found, margin_is="absolute")[1] == Verdict.NO_LOSS


def test_the_user_may_choose_another_metric_and_its_direction():
    found = [replace(run, metrics=run.metrics | {"val/other": run.seed + 1.0}) for run in runs(0.1)]
    group, _ = decided(found, metric="val_other", metric_goal="max")
    assert group.metric.sign == 1
    assert not any("since no run here has" in note for note in group.notes)
    with pytest.raises(
        UserError,
        match=r"metric=val/other: no run says whether it should rise or fall. Add "
        r"metric_goal=max or metric_goal=min",
    ):
        decided(found, metric="val/other")
    with pytest.raises(
        UserError,
        match=r"metric=val/othr: no run has it. Did you mean val/other\? There "
        r"are: val/fid, val/other",
    ):
        decided(found, metric="val/othr")
    mixed = [replace(run, metric_goal="max") if run.seed == 1 else run for run in found]
    with pytest.raises(UserError, match="some runs say that it should rise, others that it should fall"):
        decided(mixed)
