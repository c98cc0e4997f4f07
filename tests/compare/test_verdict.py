"""The answer for a group as data, and the sentence of each kind of answer once."""

from dataclasses import replace
from operator import attrgetter

import pytest
from made_runs import AMP, CONTROL, compared, made, only, seeds, served

from mpx.compare.comparison import Verdict
from mpx.compare.fastest import Outcome, fastest_to_serve, fastest_to_train

ACCURACIES = [run.metrics["test/accuracy"] for run in AMP]
NOISY = [0.93, 0.99, 0.95, 0.951, 0.96]  # of which five seeds cannot tell
AS_FAST = (3080, 3120, 3070, 3110, 3090)  # as AMP


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
    ("setting", "speeds", "best", "rivals"),
    [
        ("tf32-dense", AS_FAST, "tf32-dense", ("amp-dense",)),  # nearer to FP32
        ("amp_bf16-dense", AS_FAST, "amp-dense", ("amp_bf16-dense",)),
        ("tf32-2of4", AS_FAST, "amp-dense", ("tf32-2of4",)),
        ("amp-dense optimizer.lr=1", AS_FAST, "amp-dense", ("amp-dense optimizer.lr=1",)),
        ("tf32-dense", (2900, 2910, 2905, 2895, 2902), "amp-dense", ()),
        ("tf32-dense", (3050, None, None, None, None), "tf32-dense", ("amp-dense",)),
        ("tf32-dense", (1500, None, None, None, None), "amp-dense", ()),
    ],
)
def test_of_settings_that_are_as_fast_the_simplest_is_named(setting, speeds, best, rivals):
    assert train_answer(*AMP, *like_amp(setting, speeds)) == (Outcome.SETTING, best, rivals, (), ())


def test_a_setting_whose_speed_is_refused_may_be_the_fastest():
    emulated = like_amp("amp-dense", emulated=True)
    faster = like_amp("tf32-dense", [2000, 2001, 2002, 2003, 2004])
    assert train_answer(*faster, *emulated) == (Outcome.SETTING, "tf32-dense", (), (), ("amp-dense",))
    assert train_answer(*emulated) == (Outcome.UNTIMED, None, (), (), ("amp-dense",))


def test_a_faster_setting_that_the_seeds_cannot_decide():
    undecided = seeds("amp-2of4", NOISY, [3500, 3510, 3490, 3505, 3495])
    slower = seeds("bf16_true-dense", NOISY, [2000] * 5)
    assert train_answer(*AMP, *undecided, *slower) == (Outcome.SETTING, "amp-dense", (), ("amp-2of4",), ())
    slow = like_amp("tf32-dense", [900] * 5)
    assert train_answer(*slow, *undecided) == (Outcome.CONTROL, "tf32-dense", (), ("amp-2of4",), ())
    assert train_answer(*undecided) == (Outcome.NONE, None, (), (), ())


def said(*runs, **how):
    """The verdict on training and its evidence."""
    group, _ = only(compared([*CONTROL, *runs], **how))
    return group.train_verdict, group.evidence


def test_the_sentences_of_the_fastest_setting():
    rival, undecided = like_amp("amp_bf16-2of4", AS_FAST), seeds("amp-2of4", NOISY, [3500] * 5)
    assert said(*AMP, *rival, *undecided, margin=0.005) == (
        "FP16 trains 3.10 × as fast as FP32 at no loss of accuracy (5 seeds).",
        "Accuracy 95.2 % against 95.2 %, difference 0.0 points (0.0 to +0.1); margin 0.5.",
    )
    notes = only(compared([*CONTROL, *AMP, *rival, *undecided]))[0].notes
    assert "amp_bf16-2of4: not shown to be slower; the verdict names the simplest" in notes
    assert "amp-2of4: faster, but undecided" in notes
    once = [replace(run, train_samples_per_s=None) if run.seed else run for run in AMP]
    assert said(*once, margin=0.001) == (
        "FP16 trains about 3.10 × as fast as FP32 at no loss of accuracy (5 seeds).",
        "Accuracy 95.23 % against 95.20 %, difference +0.03 points (0.00 to +0.07); margin 0.1.",
    )


def test_the_sentence_where_nothing_is_faster_than_the_control():
    for speed, ahead in (
        ([900] * 5, "0.90 × (0.89 to 0.91)"),
        ([1005, 1000, 1010, 990, 1000], "1.00 × (0.99 to 1.01)"),
    ):
        assert said(*like_amp("amp-2of4", speed))[0] == (
            "No setting is shown to train faster than FP32 at no loss of accuracy: "
            f"FP16 with 2:4 trains {ahead} as fast (5 seeds)."
        )


def test_the_sentences_where_no_setting_is_at_no_loss():
    none = "No setting is shown to train at no loss of accuracy: "
    verdict, why = said(*seeds("amp-dense", [0.94, 0.97]))
    assert verdict.startswith(f"{none}FP16 is undecided, about ")
    assert verdict.endswith(" more seeds would decide.")
    assert why.startswith("Accuracy 95.5 % against 95.2 %, difference +0.5 points (")
    hopeless = seeds("amp-dense", [0.940, 0.9413, 0.9417, 0.9432, 0.94385])
    assert said(*hopeless)[0] == (
        f"{none}FP16 is undecided, more seeds will not help: the scatter is too large."
    )
    losing, broken = seeds("tf32-dense", [0.90] * 4 + [0.91]), made("o1-dense", status="diverged", metrics={})
    assert said(*losing, broken, *hopeless) == (
        f"{none}FP16 is undecided, more seeds will not help: the scatter is too large; TF32 has a loss; "
        "o1 has a loss, 1 of 1 seeds diverged.",
        "",
    )
    many = [run for name in ("a", "b", "c") for run in seeds(f"{name}-dense", [0.9, 0.91, 0.9, 0.9, 0.9])]
    assert said(*many, *hopeless)[0] == f"{none}3 loss, 1 undecided."


def test_the_sentences_where_no_speed_is_compared():
    emulated = like_amp("amp-dense", emulated=True)
    assert said(*emulated)[0] == (
        "FP16 trained at no loss of accuracy (5 seeds), at a speed that is not compared: "
        "emulated: not the speed of this format."
    )
    assert said(*emulated, *like_amp("tf32-dense", exclusive=None))[0].startswith("TF32 and FP16 trained at")


def test_the_sentences_without_an_answer():
    for runs, reason in (
        (CONTROL, "fp32-dense is the only setting"),
        (
            [made(status="diverged", metrics={}), *AMP],
            "no run of fp32-dense, the control, completed with test/accuracy",
        ),
        (AMP, "no run of the control to compare with"),
    ):
        group, _ = only(compared(runs))
        assert (group.train_verdict, group.evidence) == (f"No verdict: {reason}.", "")


def deployed(samples_per_s, *, elsewhere=None, plain=None):
    """samples_per_s: by setting. elsewhere: how all but the control were served differently. plain: samples/s
    of the control in FP32, beside its other way.
    """
    sparse = seeds("amp-2of4", [0.90, 0.91, 0.90, 0.89, 0.90])
    runs = []
    for run in (*CONTROL, *AMP, *sparse):
        changed = elsewhere or {} if run.setting != "fp32-dense" else {}
        ways = [served("fp32", plain + run.seed)] if plain and run.setting == "fp32-dense" else []
        if rate := samples_per_s.get(run.setting):
            ways.append(served(rate=rate + run.seed, **changed))
        runs.append(replace(run, served=tuple(ways)))
    return only(compared(runs))[0]


@pytest.mark.parametrize(
    ("samples_per_s", "elsewhere", "outcome", "best"),
    [
        # amp-2of4 loses
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0, "amp-2of4": 12000.0}, {}, Outcome.SETTING, "amp-dense"),
        ({"fp32-dense": 5000.0, "amp-dense": 4000.0}, {}, Outcome.CONTROL, "fp32-dense"),
        ({"amp-dense": 9000.0}, {}, Outcome.SETTING, "amp-dense"),
        ({"amp-2of4": 12000.0}, {}, Outcome.NONE, None),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"device": "NVIDIA L4"}, Outcome.CONTROL, "fp32-dense"),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"batch": (1, 64)}, Outcome.CONTROL, "fp32-dense"),
        # the smallest does not matter
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"batch": (8, 256)}, Outcome.SETTING, "amp-dense"),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"exclusive": None}, Outcome.CONTROL, "fp32-dense"),
        ({"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"accurate": False}, Outcome.CONTROL, "fp32-dense"),
        ({"amp-dense": 9000.0}, {"exclusive": None}, Outcome.NOTHING, None),
    ],
)
def test_serving_has_an_answer_of_its_own(samples_per_s, elsewhere, outcome, best):
    found = fastest_to_serve(deployed(samples_per_s, elsewhere=elsewhere), 0.95)
    assert (found.outcome, found.best and found.best.setting) == (outcome, best)
    assert fastest_to_serve(deployed({}), 0.95) is None


def test_the_sentences_of_serving():
    assert deployed({}).serve_verdict == ""
    both, sparse = {"fp32-dense": 5000.0, "amp-dense": 9000.0}, {"sparse": True, "fmt": "int8"}
    where = "samples/s at batch size 256 on NVIDIA H200"
    assert deployed(both, elsewhere=sparse).serve_verdict == (
        "FP16 served as 2:4 INT8 answers 1.80 × as fast as FP32 served as FP16 at no loss of accuracy: "
        f"9,002 against 5,002 {where}."
    )
    # the control itself, in another format
    assert deployed({"fp32-dense": 5000.0}, plain=2500.0).serve_verdict == (
        "FP32 served as FP16 answers 2.00 × as fast as FP32 served as FP32 at no loss of accuracy: "
        f"5,002 against 2,502 {where}."
    )
    assert deployed({"fp32-dense": 5000.0, "amp-dense": 4000.0}).serve_verdict == (
        f"Nothing is shown to be served faster at no loss of accuracy than FP32 served as FP16: 5,002 {where}."
    )
    assert deployed({"amp-dense": 9000.0}).serve_verdict == (
        f"FP16 served as FP16 is fastest at no loss of accuracy: 9,002 {where}. FP32 was not served there."
    )
    assert deployed({"amp-2of4": 12000.0}).serve_verdict == (
        "No setting that was served is shown to train at no loss of accuracy."
    )
    assert deployed({"amp-dense": 9000.0}, elsewhere={"exclusive": False}).serve_verdict == (
        "No verdict on serving: no model is as accurate as after training and has a speed that counts."
    )


def test_a_control_whose_seeds_failed_says_little():
    for values in ((0.0, 0.0, 0.79), (0.11, 0.86, 0.85)):
        runs = [
            *seeds("fp32-dense", values),
            *seeds("amp-dense", [value + 0.001 * seed for seed, value in enumerate(values)]),
        ]
        group, rows = only(compared(runs))
        assert rows["amp-dense"].decision.verdict == Verdict.NO_LOSS
        ends = f"{100 * min(values):.1f} % to {100 * max(values):.1f} %"
        assert group.evidence.endswith(f"This says little: the control's seeds scatter so much ({ends}).")
    assert "little" not in said(*seeds("amp-dense", [0.94, 0.951, 0.952]))[1]
