"""Comparisons that have no answer: seeds that tie, and other lengths of training."""

from dataclasses import replace

import pytest
from made_runs import CONTROL, compared, made, only, seeds

from mpx.compare.comparison import Verdict


def decision(runs, setting="amp-dense", **how):
    group, rows = only(compared(runs, **how))
    return group, rows[setting].decision


@pytest.mark.parametrize(
    ("right", "samples", "count"), [(18, 20, 5), (9_500, 10_000, 4)], ids=["20 samples", "10,000 samples"]
)
def test_seeds_that_all_tie_are_undecided_whatever_the_losses_say(right, samples, count):
    runs = [
        made(setting, seed, metrics={"test/accuracy": right / samples, "test/loss": 0.3 + 0.01 * seed + loss})
        for setting, loss in (("fp32-dense", 0.0), ("amp-dense", 0.002))
        for seed in range(count)
    ]
    group, found = decision(runs)
    assert (found.verdict, found.p, found.low) == (Verdict.UNDECIDED, None, None)
    assert "FP16 is undecided, all seeds of a setting agree, so how they scatter" in group.train_verdict


def test_seeds_that_change_nothing_are_undecided():
    """A loop that never uses its seed."""
    _, found = decision([*CONTROL, *seeds("amp-dense", [0.9521] * 5)])
    assert (found.verdict, found.p) == (Verdict.UNDECIDED, None)


def lengths(**steps):
    """Three seeds of each setting: fp32_dense__trainer_max_epochs=40."""
    runs = []
    for name, count in steps.items():
        precision, *epochs = name.split("_at_")
        setting = f"{precision}-dense" + (f" trainer.max_epochs={epochs[0]}" if epochs else "")
        runs += seeds(setting, [0.95, 0.951, 0.952], optimizer_steps=count)
    return runs


def test_runs_of_other_lengths_are_not_comparable():
    """mlp on digits, FP32 for 2 epochs and BF16 for 6."""
    group, found = decision(lengths(fp32=40, amp_bf16_at_6=120), "amp_bf16-dense trainer.max_epochs=6")
    assert (found.verdict, found.difference) == (Verdict.NOT_COMPARABLE, None)
    said = "BF16 trainer.max_epochs=6 is not comparable, it took 120 optimizer steps, fp32-dense 40."
    assert said in group.train_verdict
    assert group.rows[1].sooner is None


def test_lengths_that_no_setting_names_are_not_comparable_either():
    """As of a loop that ends early; a batch less, or steps that were skipped, are the same length."""
    assert decision(lengths(fp32=100, amp=70))[1].verdict == Verdict.NOT_COMPARABLE
    assert decision(lengths(fp32=100, amp=99))[1].verdict == Verdict.NO_LOSS
    skipped = [replace(run, skipped_steps=20) for run in lengths(amp=80)]
    assert decision([*lengths(fp32=100), *skipped])[1].verdict == Verdict.NO_LOSS
    ended_early = [*lengths(amp=100)[:2], *lengths(amp=70)[2:]]
    assert decision([*lengths(fp32=100), *ended_early])[1].verdict == Verdict.NO_LOSS


EARLY = "trainer.early_stopping=val/loss"


def test_runs_that_end_early_are_compared_with_each_other():
    values = [0.95, 0.951, 0.952]
    runs = [
        *seeds(f"fp32-dense {EARLY}", values, optimizer_steps=40),
        *seeds(f"amp-dense {EARLY}", values, optimizer_steps=70),
    ]
    assert decision(runs)[1].verdict == Verdict.NO_LOSS
    group, found = decision([*lengths(fp32=70), *runs[3:]], f"amp-dense {EARLY}")
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert "ends early (trainer.early_stopping): " in group.train_verdict
    assert "fp32-dense does not" in group.train_verdict


def test_a_study_of_the_number_of_steps_compares_them():
    study = lengths(fp32_at_2=40, fp32_at_6=120, amp_at_2=40, amp_at_6=120)
    group, _ = only(compared(study, control="fp32-dense trainer.max_epochs=2"))
    assert {row.decision.verdict for row in group.rows[1:]} == {Verdict.NO_LOSS}
