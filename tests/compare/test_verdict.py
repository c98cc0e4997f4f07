"""The answer for a group as data, and the sentence of each kind of answer once."""

from dataclasses import replace
from operator import attrgetter

import pytest
from made_runs import AMP, CONTROL, compared, made, only, seeds, served

from mpx.compare.verdict import Outcome, fastest_to_serve, fastest_to_train

ACCURACIES = [run.metrics["test/accuracy"] for run in AMP]
NOISY = [0.93, 0.99, 0.95, 0.951, 0.96]  # of which five seeds cannot tell


def train_answer(*runs):
    """(outcome, best, rivals, undecided, untimed), as settings."""
    found = fastest_to_train(only(compared([*CONTROL, *runs]))[0], 0.95)
    named = [
        tuple(map(attrgetter("setting"), rows)) for rows in (found.rivals, found.undecided, found.untimed)
    ]
    return found.outcome, found.best and found.best.setting, *named


def like_amp(setting, speeds=None, **changed):
    return seeds(setting, ACCURACIES, speeds, **changed)


@pytest.mark.parametrize(
    ("speeds", "rivals"),
    [
        ((3080, 3120, 3070, 3110, 3090), ("tf32-dense",)),
        ((2900, 2910, 2905, 2895, 2902), ()),
        ((3050, None, None, None, None), ("tf32-dense",)),
        ((1500, None, None, None, None), ()),
    ],
    ids=["as fast", "slower", "one run, near", "one run, far"],
)
def test_a_runner_up_that_may_be_as_fast_is_a_rival(speeds, rivals):
    assert train_answer(*AMP, *like_amp("tf32-dense", speeds)) == (
        Outcome.SETTING,
        "amp-dense",
        rivals,
        (),
        (),
    )


def test_a_setting_whose_speed_is_refused_may_be_the_fastest():
    emulated = like_amp("amp-dense", emulated=True)
    assert train_answer(*like_amp("tf32-dense", [2000] * 5), *emulated) == (
        Outcome.SETTING,
        "tf32-dense",
        (),
        (),
        ("amp-dense",),
    )
    assert train_answer(*emulated) == (Outcome.UNTIMED, None, (), (), ("amp-dense",))


def test_a_faster_setting_that_the_seeds_cannot_decide():
    undecided = seeds("amp-2of4", NOISY, [3500, 3510, 3490, 3505, 3495])
    slower = seeds("bf16_true-dense", NOISY, [2000] * 5)
    assert train_answer(*AMP, *undecided, *slower) == (Outcome.SETTING, "amp-dense", (), ("amp-2of4",), ())
    assert train_answer(*like_amp("tf32-dense", [900] * 5), *undecided) == (
        Outcome.CONTROL,
        "tf32-dense",
        (),
        ("amp-2of4",),
        (),
    )
    assert train_answer(*undecided) == (Outcome.NONE, None, (), (), ())


def test_without_a_control_or_another_setting_there_is_nothing_to_compare():
    for runs, reason in (
        (CONTROL, "there is nothing to compare fp32-dense with"),
        (
            [made(status="diverged", metrics={}), *AMP],
            "no run of fp32-dense, the control, completed with test/accuracy",
        ),
        (AMP, "no run of the control to compare with"),
    ):
        found = fastest_to_train(only(compared(runs))[0], 0.95)
        assert (found.outcome, found.reason) == (Outcome.NOTHING, reason)


def sentence(*runs):
    return only(compared([*CONTROL, *runs]))[0].train_verdict


def test_the_sentence_of_the_fastest_setting():
    rival, untimed = (
        like_amp("tf32-dense", [3080, 3120, 3070, 3110, 3090]),
        like_amp("o1-dense", emulated=True),
    )
    undecided = seeds("amp-2of4", NOISY, [3500] * 5)
    assert sentence(*AMP, *rival, *untimed, *undecided) == (
        "Fastest to train at no loss of accuracy: amp-dense, 3.10 times as fast as fp32-dense (3.07 to "
        "3.13, 95 % confidence); "
        "test accuracy 0.9523 ± 0.0015 against 0.9520 ± 0.0016 over 5 seeds, difference +0.0003 (+0.0000 "
        "to +0.0007), margin 0.01; "
        "perhaps as fast, also at no loss: tf32-dense; faster, but not enough seeds to tell: amp-2of4; "
        "also at no loss of accuracy, their speed not compared: o1-dense."
    )


def test_the_sentence_of_the_control():
    assert sentence(*like_amp("amp-dense", [900] * 5)) == (
        "Fastest to train at no loss of accuracy: fp32-dense itself; of the others, amp-dense comes nearest, "
        "0.90 times as fast as fp32-dense (0.89 to 0.91, 95 % confidence)."
    )


def deployed(samples_per_s, *, elsewhere=None, **changed):
    """samples_per_s: by setting. elsewhere: how all but the control were served differently."""
    sparse = seeds("amp-2of4", [0.90, 0.91, 0.90, 0.89, 0.90])
    runs = [
        replace(run, served=ways(run, samples_per_s, elsewhere or {})) for run in (*CONTROL, *AMP, *sparse)
    ]
    return only(compared(runs))[0]


def ways(run, samples_per_s, elsewhere):
    if run.setting not in samples_per_s:
        return ()
    return (
        served(
            rate=samples_per_s[run.setting] + run.seed, **(elsewhere if run.setting != "fp32-dense" else {})
        ),
    )


@pytest.mark.parametrize(
    ("samples_per_s", "elsewhere", "outcome", "best"),
    [
        # amp-2of4 loses
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0, "amp-2of4": 12000.0}, {}, Outcome.SETTING, "amp-dense"),
        ({"fp32-dense": 5000.0, "amp-dense": 4000.0}, {}, Outcome.CONTROL, "fp32-dense"),
        ({"fp32-dense": 5000.0}, {}, Outcome.CONTROL, "fp32-dense"),
        ({"amp-dense": 9000.0}, {}, Outcome.SETTING, "amp-dense"),
        ({"amp-2of4": 12000.0}, {}, Outcome.NONE, None),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"device": "NVIDIA L4"}, Outcome.NOTHING, None),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"batch": (1, 64)}, Outcome.NOTHING, None),
        # the smallest does not matter
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"batch": (8, 256)}, Outcome.SETTING, "amp-dense"),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"exclusive": None}, Outcome.NOTHING, None),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"accurate": False}, Outcome.NOTHING, None),
        ({"amp-dense": 9000.0}, {"exclusive": None}, Outcome.NOTHING, None),
    ],
)
def test_serving_has_an_answer_of_its_own(samples_per_s, elsewhere, outcome, best):
    found = fastest_to_serve(deployed(samples_per_s, elsewhere=elsewhere), 0.95)
    assert (found.outcome, found.best and found.best.setting) == (outcome, best)
    assert fastest_to_serve(deployed({}), 0.95) is None


def test_the_sentences_of_serving():
    assert deployed({}).serve_verdict == ""
    assert deployed(
        {"fp32-dense": 5000.0, "amp-dense": 9000.0}, elsewhere={"sparse": True, "fmt": "int8"}
    ).serve_verdict == (
        "Fastest to serve at no loss of accuracy: amp-dense as Sparse INT8 by graph, 9,002 samples/s at "
        "batch size 256 on NVIDIA H200; "
        "1.80 times as fast as fp32-dense as Dense FP16 by graph (1.80 to 1.80, 95 % confidence)."
    )
    found = deployed({"fp32-dense": 5000.0, "amp-dense": 4000.0}).serve_verdict
    assert found.endswith(
        "fp32-dense as Dense FP16 by graph, 5,002 samples/s at batch size 256 on NVIDIA "
        "H200; the control itself."
    )
    assert deployed({"amp-dense": 9000.0}).serve_verdict.endswith(
        "on NVIDIA H200; fp32-dense was not served so."
    )
    assert deployed({"amp-2of4": 12000.0}).serve_verdict == (
        "Fastest to serve: none of the served settings (amp-2of4) is shown to be at no loss of accuracy."
    )
    assert deployed(
        {"fp32-dense": 5000.0, "amp-dense": 9000.0}, elsewhere={"batch": (1, 64)}
    ).serve_verdict == (
        "Fastest to serve: no verdict, only fp32-dense counts at batch size 256 on NVIDIA H200; "
        "not compared: amp-dense (at batch size 64 on NVIDIA H200)."
    )
    assert (
        "known to have had its device to itself"
        in deployed({"amp-dense": 9000.0}, elsewhere={"exclusive": False}).serve_verdict
    )


def test_a_setting_that_was_served_elsewhere_is_named_and_not_compared():
    third = [replace(run, precision="amp_bf16", served=(served("bf16", 1e6, batch=(1, 512)),)) for run in AMP]
    runs = [replace(run, served=(served("fp16", 5000.0 + run.seed),)) for run in (*CONTROL, *AMP)]
    group = only(compared([*runs, *third]))[0]
    assert group.served_at == ("NVIDIA H200", 256, None)
    assert group.serve_verdict.endswith("; not compared: amp_bf16-dense (at batch size 512 on NVIDIA H200).")


@pytest.mark.parametrize(("inaccurate", "words"), [(None, "Dense INT8"), (3, "Dense FP16")])
def test_the_fastest_of_several_ways_counts_and_one_inaccurate_seed_leaves_a_way_out(inaccurate, words):
    def both(run):
        slow, fast = (
            served("fp16", 5000.0 + run.seed),
            served("int8", 9000.0 + run.seed, accurate=run.seed != inaccurate),
        )
        return replace(run, served=(slow, fast))

    _, rows = only(compared([*map(both, CONTROL), *map(both, AMP)]))
    assert rows["amp-dense"].served_by.words == words
