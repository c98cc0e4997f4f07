"""The answer in one sentence: what it names, how sure it is, and what it says where there is none."""

import pytest
from made_runs import AMP, CONTROL, compared, made, only, seeds


def test_the_verdict_names_what_it_could_not_compare():
    """A setting whose speed is refused may be the fastest of all."""
    slower = [made("tf32-dense", run.seed, run.metrics["test/accuracy"], 2000.0 + run.seed) for run in AMP]
    emulated = [made("amp-dense", run.seed, run.metrics["test/accuracy"], emulated=True) for run in AMP]
    verdict = only(compared([*CONTROL, *slower, *emulated]))[0].train_verdict
    assert verdict.startswith("Fastest to train at no loss of accuracy: tf32-dense, ")
    assert verdict.endswith("margin 0.01; also at no loss of accuracy, their speed not compared: amp-dense.")


def test_of_many_settings_the_verdict_is_still_a_sentence():
    noisy = [run for name in "abcd" for run in seeds(f"amp-dense model.kind={name}", [0.93, 0.99, 0.95, 0.951 + ord(name) / 1e4, 0.96])]
    group = only(compared([*CONTROL, *noisy]))[0]
    least = min((row for row in group.rows[1:]), key=lambda row: row.decision.more_seeds)
    assert group.train_verdict == (
        "No setting is shown to train at no loss of accuracy. 4 settings: 4 not enough seeds to tell; "
        f"{least.setting} is nearest, about {least.decision.more_seeds} more seeds would tell."
    )
    equal = [
        run
        for name in "abcd"
        for run in seeds(f"amp-dense model.kind={name}", [run.metrics["test/accuracy"] for run in AMP], exclusive=False)
    ]
    group = only(compared([*CONTROL, *equal]))[0]
    assert group.train_verdict.startswith("At no loss of accuracy: all 4 others. Which setting is fastest to train is not known (")
    assert group.notes[-1].startswith("amp-dense model.kind=a, amp-dense model.kind=b")


def test_slower_at_no_loss():
    slow = [made("amp-dense", run.seed, run.metrics["test/accuracy"], 900.0 + run.seed) for run in AMP]
    verdict = only(compared([*CONTROL, *slow]))[0].train_verdict
    assert verdict.startswith(
        "Fastest to train at no loss of accuracy: fp32-dense itself; of the others, amp-dense comes nearest, 0.90 times"
    )


def test_a_speed_up_that_may_be_chance_says_so():
    about = [
        made("amp-dense", run.seed, run.metrics["test/accuracy"], speed)
        for run, speed in zip(AMP, (980, 1040, 1000, 990, 1020), strict=True)
    ]
    assert "(0.98 to 1.04, 95 % confidence), which may be chance;" in only(compared([*CONTROL, *about]))[0].train_verdict


@pytest.mark.parametrize(
    ("speeds", "end"),
    [
        ((3080, 3120, 3070, 3110, 3090), "margin 0.01; perhaps as fast, also at no loss: tf32-dense."),
        ((2900, 2910, 2905, 2895, 2902), "margin 0.01."),
        ((3050, None, None, None, None), "margin 0.01; perhaps as fast, also at no loss: tf32-dense."),
        ((1500, None, None, None, None), "margin 0.01."),
    ],
    ids=["as fast", "slower", "one run, near", "one run, far"],
)
def test_a_runner_up_that_may_be_as_fast_is_named(speeds, end):
    near = seeds("tf32-dense", [run.metrics["test/accuracy"] for run in AMP], speeds)
    verdict = only(compared([*CONTROL, *AMP, *near]))[0].train_verdict
    assert verdict.startswith("Fastest to train at no loss of accuracy: amp-dense, 3.10 times")
    assert verdict.endswith(end)


def test_a_faster_setting_that_the_seeds_cannot_decide_is_named():
    open_ = seeds("amp-2of4", [0.93, 0.99, 0.95, 0.951, 0.96], [3500, 3510, 3490, 3505, 3495])
    slow = seeds("bf16_true-dense", [0.93, 0.99, 0.95, 0.951, 0.96], [2000] * 5)
    verdict = only(compared([*CONTROL, *AMP, *open_, *slow]))[0].train_verdict
    assert verdict.endswith("margin 0.01; faster, but not enough seeds to tell: amp-2of4.")
    slower = seeds("tf32-dense", [run.metrics["test/accuracy"] for run in AMP], [900] * 5)
    verdict = only(compared([*CONTROL, *slower, *open_]))[0].train_verdict
    assert verdict.startswith("Fastest to train at no loss of accuracy: fp32-dense itself; of the others, tf32-dense comes nearest, ")
    assert verdict.endswith("; faster, but not enough seeds to tell: amp-2of4.")


def test_serving_is_a_verdict_of_its_own():
    served = {"fp32-dense": 5000.0, "amp-dense": 9000.0, "amp-2of4": 12000.0}
    sparse = seeds("amp-2of4", [0.90, 0.91, 0.90, 0.89, 0.90])
    runs = [
        made(
            run.setting, run.seed, run.metrics["test/accuracy"], run.train_samples_per_s, serve_samples_per_s=served[run.setting] + run.seed
        )
        for run in (*CONTROL, *AMP, *sparse)
    ]
    assert only(compared(runs))[0].serve_verdict == (
        "Fastest to serve at no loss of accuracy: amp-dense, 9,002 samples/s; "
        "1.80 times as fast as fp32-dense (1.80 to 1.80, 95 % confidence)."
    )


def test_a_verdict_says_over_which_seeds_the_difference_is():
    group, _ = only(compared([*CONTROL[:3], *AMP]))
    assert " over 5 and 3 seeds, difference +0.0004 (" in group.train_verdict
    assert ") over the 3 that both have, margin 0.01" in group.train_verdict
