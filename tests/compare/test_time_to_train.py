"""Time to train: where it counts, and a setting that finishes earlier than the one of the highest throughput."""

from dataclasses import replace

import pytest
from made_runs import AMP, CONTROL, compared, only, seeds

from mpx.render.comparison_tables import print_comparison
from mpx.render.html import html_report
from mpx.render.report import verdicts

BF16 = seeds("amp_bf16-dense", [0.9504, 0.9513, 0.9522, 0.9533, 0.9540], [2400, 2410, 2390, 2405, 2395])
WORSE = seeds("fp8-dense", [0.91, 0.92, 0.90, 0.91, 0.92], [5000, 5010, 4990, 5005, 4995])


def took(runs, seconds, **changed):
    """The runs with times to train around `seconds`."""
    return [replace(run, time_to_train_s=seconds * (1 + 0.001 * (run.seed - 2)), **changed) for run in runs]


def said(*runs):
    group, rows = only(compared([run for found in runs for run in found]))
    return group.time_verdict, rows


def test_the_fastest_to_train_also_finishes_first():
    verdict, rows = said(took(CONTROL, 60), took(AMP, 20), took(BF16, 25))
    assert verdict == ""
    assert rows["amp-dense"].sooner.ratio == pytest.approx(3)


def test_a_different_setting_finishes_first():
    verdict, _ = said(took(CONTROL, 60), took(AMP, 30), took(BF16, 25), took(WORSE, 5))
    assert verdict == ("BF16 finishes training earlier: 25.0 s against 30.0 s. FP16 pays in longer runs.")
    assert said(took(CONTROL, 60), took(AMP, 25.01), took(BF16, 25))[0] == "", "not surely earlier"


@pytest.mark.parametrize(
    "changed",
    [{"exclusive": None}, {"emulated": True}, {"batch_size": 128}],
    ids=str,
)
def test_times_count_only_where_speeds_do(changed):
    verdict, rows = said(took(CONTROL, 6), took(AMP, 20, **changed))
    assert (verdict, rows["amp-dense"].sooner) == ("", None)


def test_the_time_of_a_resumed_run_does_not_count_since_its_parts_may_have_run_elsewhere():
    again = [
        replace(run, environment=run.environment | {"resumed_from_steps": [40]}) for run in took(AMP, 90)
    ]
    group, rows = only(compared([*took(CONTROL, 60), *took(AMP[:3], 20), *again[3:]]))
    assert rows["amp-dense"].sooner.ratio == pytest.approx(3, rel=0.01)
    assert (
        "amp-dense: time to train compared without 2 of 5 runs, which resumed, maybe elsewhere" in group.notes
    )
    assert said(took(CONTROL, 60), again)[1]["amp-dense"].sooner is None


def test_report_and_terminal_say_it(capsys):
    comparison = compared([*took(CONTROL, 60), *took(AMP, 30), *took(BF16, 25)])
    (group,) = comparison.groups
    print_comparison(comparison)
    assert group.time_verdict in " ".join(capsys.readouterr().out.split())
    assert f"{group.time_verdict}" in verdicts(comparison).replace("\\", "")
    assert f"<p>{group.time_verdict}</p>" in html_report(comparison, [[]], {})
