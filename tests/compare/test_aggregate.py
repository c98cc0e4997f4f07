"""From runs to groups, rows, decisions, speed-ups and notes."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from made_runs import AMP, CONTROL, compared, made, only, seeds, served

from mpx.compare.comparison import Method, Verdict
from mpx.compare.control import AUTO
from mpx.compare.metric import METRICS, Metric, judged_by
from mpx.compare.notes import NARROW
from mpx.compare.results import from_csv, to_csv
from mpx.compare.run import text_of
from mpx.settings.compare import COMPARE


def test_metrics_are_those_that_can_be_set():
    assert all(COMPARE["metric"].fits(name) for name in (AUTO, *METRICS))


def test_the_usual_study():
    losing = seeds("amp-2of4", [0.930, 0.931, 0.929, 0.933, 0.930], [3200] * 5)
    group, rows = only(compared([*losing, *AMP, *CONTROL]))
    assert [row.setting for row in group.rows] == ["fp32-dense", "amp-2of4", "amp-dense"]  # the control, then the fastest first
    assert (group.control, group.metric.name, group.changes, group.notes) == ("fp32-dense", "test/accuracy", {}, ())
    amp = rows["amp-dense"]
    assert (amp.decision.verdict, amp.decision.method, amp.decision.more_seeds) == (Verdict.NO_LOSS, Method.PAIRED, None)
    assert amp.speedup.ratio == pytest.approx(3.1)
    assert amp.speedup.low < 3.1 < amp.speedup.high
    assert rows["amp-2of4"].decision.verdict == Verdict.LOSS
    assert rows["fp32-dense"].decision is None


def test_few_and_noisy_seeds_are_not_enough_and_say_how_many_are():
    group, rows = only(compared([*CONTROL, *seeds("amp-dense", [0.94, 0.97], [3000, 3000])]))
    decision = rows["amp-dense"].decision
    assert decision.verdict == Verdict.UNDECIDED
    assert decision.more_seeds > 1
    assert f"amp-dense: not enough seeds to tell, about {decision.more_seeds} more would" in group.train_verdict
    assert "amp-dense: test accuracy compared over the 2 seeds shared with the control" in group.notes


def test_settings_with_the_same_note_share_a_line():
    few = [run for name in ("amp-dense", "amp-2of4") for run in seeds(name, [0.94, 0.97], [3000, 3000])]
    group, _ = only(compared([*CONTROL, *few]))
    assert group.notes == ("amp-2of4, amp-dense: test accuracy compared over the 2 seeds shared with the control",)


def test_one_seed_each():
    group, rows = only(compared([made("fp32-dense"), made("amp-dense", value=0.96)]))
    decision = rows["amp-dense"].decision
    assert (decision.verdict, decision.method, decision.low, decision.p) == (Verdict.UNDECIDED, Method.NONE, None, None)
    assert decision.difference == pytest.approx(0.01)
    assert "it takes at least 2 of each" in group.train_verdict


def test_equal_seeds_of_runs_that_have_no_other_metric_may_be_a_coincidence():
    both = [run for name in ("fp32-dense", "amp-dense") for run in seeds(name, [0.95, 0.96])]
    assert only(compared(both))[1]["amp-dense"].decision.verdict == Verdict.UNDECIDED


def test_seeds_that_differ_are_compared_by_welch():
    others = [made("amp-dense", 10 + seed, 0.951 + seed / 1000, 3000) for seed in range(4)]
    assert only(compared([*CONTROL, *others]))[1]["amp-dense"].decision.method == Method.WELCH


def test_holm_over_the_settings_of_a_group():
    rng = np.random.default_rng(1)
    others = [run for name in ("amp-dense", "tf32-dense", "amp-2of4") for run in seeds(name, list(0.947 + 0.004 * rng.random(5)))]
    rows = [row for row in only(compared([*CONTROL, *others]))[0].rows if row.decision]
    ordered = sorted(rows, key=lambda row: row.decision.p)
    expected, largest = [], 0.0
    for left, row in zip((3, 2, 1), ordered, strict=True):
        largest = max(largest, min(1.0, left * row.decision.p))
        expected.append(largest)
    assert [row.decision.p_holm for row in ordered] == pytest.approx(expected)


def test_the_p_value_shown_is_that_of_the_test_that_decided():
    """Of a loss that of the opposite test, not the 1.0 of the test for none."""
    lost = seeds("amp-2of4", [run.metrics["test/accuracy"] - 0.03 - 0.0001 * run.seed for run in CONTROL])
    rows = only(compared([*CONTROL, *AMP, *lost]))[1]
    decision, other = rows["amp-2of4"].decision, rows["amp-dense"].decision
    assert (decision.verdict, other.verdict) == (Verdict.LOSS, Verdict.NO_LOSS)
    assert decision.p_holm > 0.99
    assert decision.p_decided == pytest.approx(2 * (1 - decision.p), rel=1e-6)  # the smaller of two
    assert decision.p_decided < 0.001
    assert other.p_decided == other.p_holm < 0.05


@pytest.mark.slow
def test_any_wrong_no_loss_in_a_group_is_as_rare_as_stated():
    """Four settings that lose just the margin, one control: at most 5 % of studies call any of them no loss."""
    rng = np.random.default_rng(4)
    studies, wrong = 250, 0
    for _ in range(studies):
        runs = seeds("fp32-dense", list(rng.normal(0.95, 0.005, 4)))
        for name in ("tf32-dense", "amp-dense", "amp-2of4", "fp32-2of4"):
            runs += seeds(name, list(rng.normal(0.94, 0.005, 4)))
        wrong += any(row.decision and row.decision.verdict == Verdict.NO_LOSS for row in only(compared(runs))[0].rows)
    assert wrong / studies <= 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5


def test_a_diverged_seed_counts_against_its_setting():
    diverged = [*AMP[:4], made("amp-dense", 4, None, status="diverged", metrics={})]
    decision = only(compared([*CONTROL, *diverged]))[1]["amp-dense"].decision
    assert (decision.verdict, decision.reason) == (Verdict.LOSS, "1 of 5 seeds diverged")
    assert decision.p is not None
    assert decision.p_decided is None  # no test decided


def test_a_setting_that_never_completed():
    runs = [made("o3-dense", seed, None, status="diverged", metrics={}) for seed in range(2)]
    group, rows = only(compared([*CONTROL, *runs]))
    decision = rows["o3-dense"].decision
    assert (decision.verdict, decision.difference, decision.reason) == (Verdict.LOSS, None, "2 of 2 seeds diverged")
    assert (rows["o3-dense"].metric, rows["o3-dense"].diverged, rows["o3-dense"].speed_note) == (None, 2, "no run completed")
    assert "o3-dense: loss, 2 of 2 seeds diverged" in group.train_verdict


def test_a_control_that_diverges_is_said():
    broken = [*CONTROL[:4], made("fp32-dense", 4, None, status="diverged", metrics={})]
    group, rows = only(compared([*broken, *AMP]))
    assert rows["amp-dense"].decision.verdict == Verdict.NO_LOSS
    assert "the control diverged in 1 of 5 seeds; decisions rest on the others" in group.notes
    also = [*AMP[:3], *(made("amp-dense", seed, None, status="diverged", metrics={}) for seed in (3, 4))]
    assert only(compared([*broken, *also]))[1]["amp-dense"].decision.reason == "2 of 5 seeds diverged, of fp32-dense 1 of 5"
    group, rows = only(compared([made(status="diverged", metrics={}), *AMP]))
    assert rows["amp-dense"].decision is None
    assert group.train_verdict.startswith("No verdict: ")


REFUSED = [
    ({"emulated": True}, "emulated: not the speed of this format"),
    ({"exclusive": False}, "something else used the device"),
    ({"exclusive": None}, "unknown whether something else used the device, as on every CPU"),
    ({"train_samples_per_s": None}, "no throughput was measured"),
    ({"batch_size": 128}, "batch size 128, fp32-dense with batch size 256"),
    ({"batch_size": None}, "batches of no usual size, fp32-dense with batch size 256"),
    ({"device": "NVIDIA L4"}, "ran on NVIDIA L4, fp32-dense on NVIDIA H200"),
    ({"environment": {"torch": "2.14.1"}}, "measured with torch 2.14.1, fp32-dense with torch 2.15.0"),
]


@pytest.mark.parametrize(("changed", "note"), REFUSED, ids=[note for _, note in REFUSED])
def test_speed_that_cannot_be_compared_is_refused(changed, note):
    runs = [made("amp-dense", run.seed, run.metrics["test/accuracy"], **changed) for run in AMP]
    group, rows = only(compared([*CONTROL, *runs]))
    assert (rows["amp-dense"].speedup, rows["amp-dense"].speed_note) == (None, note)
    marked = "; samples/s marked (shared) and times are as measured" if rows["amp-dense"].shared else ""
    assert bool(marked) == ("device" in note and "ran on" not in note)
    assert f"amp-dense: speed not compared, {note}{marked}" in group.notes


def test_why_no_run_can_be_compared_is_said_of_each():
    elsewhere = [{"device": "NVIDIA L4"}, {"batch_size": 128}]
    runs = [made("amp-dense", seed, 0.95, **changed) for seed, changed in enumerate(elsewhere)]
    (note,) = {row.speed_note for row in only(compared([*CONTROL, *runs]))[0].rows[1:]}
    assert note == "ran on NVIDIA L4; batch size 128, fp32-dense on NVIDIA H200 and with batch size 256"


def test_a_shared_device_shows_what_was_measured_there():
    """On the device and with the batch size of most runs; never of emulated runs."""
    speeds = zip(AMP, (100.0, 110.0, 120.0, 9000.0, 9000.0), (None, False, None, None, None), strict=True)
    runs = [made("amp-dense", run.seed, 0.95, speed, exclusive=exclusive) for run, speed, exclusive in speeds]
    runs[3:] = [
        made("amp-dense", 3, 0.95, 9000.0, exclusive=False, device="a GPU"),
        made("amp-dense", 4, 0.95, 9e3, exclusive=False, emulated=True),
    ]
    for found in (runs, [*on("aaaaaa", runs[:2]), *on("bbbbbb", runs[2:])]):
        row = only(compared([*CONTROL, *found]))[1]["amp-dense"]
        assert (row.throughput, row.speedup) == (None, None)
        assert (row.shared.mean, row.shared.n) == (110.0, 3)


def test_a_speed_that_was_measured_beside_others_waits_for_its_measurement():
    how = {"speed_measured": "beside other jobs of the sweep", "exclusive": False}
    group, rows = only(compared([*CONTROL, *seeds("amp-dense", [0.95] * 5, **how)]))
    assert rows["amp-dense"].speed_note == "beside other jobs of the sweep"
    assert rows["amp-dense"].speedup is None
    assert any(note.startswith("amp-dense: speed not compared, beside other jobs of the sweep") for note in group.notes)


def test_speed_of_the_control_does_not_count():
    runs = [made("fp32-dense", run.seed, run.metrics["test/accuracy"], exclusive=False) for run in CONTROL]
    rows = only(compared([*runs, *AMP]))[1]
    assert rows["fp32-dense"].speed_note == "something else used the device"
    assert rows["amp-dense"].speed_note == "the speed of fp32-dense does not count"
    assert rows["amp-dense"].throughput.mean == 3100


def test_memory_is_that_of_one_device():
    """Neither a mean of a GPU's memory and of a host's RAM, nor of two kinds of GPU."""
    ram = [made("amp-dense", seed, device="a CPU, 8 threads", exclusive=None, peak_gib=40.0) for seed in (5, 6, 7, 8, 9, 10)]
    rows = only(compared([*CONTROL, *AMP, *ram]))[1]
    assert (rows["amp-dense"].peak_gib.mean, rows["amp-dense"].peak_gib.n) == (2.5, 5)
    rows = only(compared([*CONTROL, *ram, made("amp-dense", device="a CPU, 4 threads", exclusive=None, peak_gib=20.0)]))[1]
    assert (rows["amp-dense"].peak_gib.mean, rows["amp-dense"].peak_gib.n) == (40.0, 6)


def test_only_the_runs_whose_speed_counts_are_averaged():
    shared = [*AMP[:4], made("amp-dense", 4, 0.9541, 100.0, exclusive=False)]
    row = only(compared([*CONTROL, *shared]))[1]["amp-dense"]
    assert (row.throughput.n, row.speed_note) == (4, None)
    assert row.throughput.mean == pytest.approx(3101.25)
    assert row.metric.n == 5


def test_a_control_on_two_devices_is_taken_on_the_one_with_more_runs():
    mixed = [*CONTROL[:3], *(made("fp32-dense", seed, 0.953, 300.0, device="NVIDIA L4") for seed in (3, 4))]
    group, rows = only(compared([*mixed, *AMP]))
    assert rows["fp32-dense"].throughput.mean == pytest.approx(1000)
    assert rows["amp-dense"].speedup.ratio == pytest.approx(3.1)
    assert "fp32-dense: speed of 3 of 5 completed runs, without 2: ran on NVIDIA L4" in group.notes


def test_why_a_run_of_several_does_not_count_is_said():
    odd = [{"exclusive": False}, {"batch_size": 128}, {"exclusive": False}, {"emulated": True}]
    runs = [*AMP[4:], *(made("amp-dense", seed, 0.9505, 9000.0, **changed) for seed, changed in enumerate(odd))]
    group, rows = only(compared([*CONTROL, *runs]))
    assert rows["amp-dense"].throughput.mean == 3095
    assert (
        "amp-dense: speed of 1 of 5 completed runs, without 2: something else used the device; 1: batch size 128; "
        "1: emulated: not the speed of this format"
    ) in group.notes


def test_runs_without_the_metric_are_said():
    runs = [*AMP[:4], made("amp-dense", 4, None)]
    group, rows = only(compared([*CONTROL, *runs]))
    assert rows["amp-dense"].metric.n == 4
    assert "amp-dense: test/accuracy is missing in 1 of 5 completed runs" in group.notes
    group, rows = only(compared([*CONTROL, *(made("amp-dense", seed, None) for seed in range(2))]))
    assert rows["amp-dense"].decision is None
    assert group.train_verdict == "No setting is shown to train at no loss of accuracy. amp-dense: no result."
    note = "no run of the control has test/accuracy; nothing can be decided; choose another by metric=, of test/acc"
    assert note in only(compared([made(name, metric="test/acc") for name in ("fp32-dense", "amp-dense")]))[0].notes


def test_a_metric_that_the_records_declare_is_compared_in_its_direction():
    how = {"metric": "test/mse", "metric_goal": "min"}
    control = [replace(run, **how) for run in seeds("fp32-dense", [4.0, 4.01, 3.99, 4.0], metric="test/mse")]
    better = [replace(run, **how) for run in seeds("amp-dense", [3.5, 3.52, 3.49, 3.51], [3000, 3010, 2990, 3000], metric="test/mse")]
    worse = [replace(run, **how) for run in seeds("tf32-dense", [4.5, 4.52, 4.49, 4.51], metric="test/mse")]
    group, rows = only(compared([*control, *better, *worse], metric=AUTO))
    assert (group.metric.name, group.metric.sign, group.metric.words, group.metric.relative) == ("test/mse", -1, "test mse", True)
    assert (rows["amp-dense"].decision.verdict, rows["tf32-dense"].decision.verdict) == (Verdict.NO_LOSS, Verdict.LOSS)
    assert group.train_verdict.startswith("Fastest to train at no worse mse: amp-dense")
    again = from_csv(to_csv([*control, *better, *worse]), "r.csv")
    assert only(compared(again, metric=AUTO)) == (group, rows)


def test_a_declared_metric_that_must_rise_has_a_margin_of_its_unit():
    runs = [replace(run, metric="test/f1", metric_goal="max") for run in seeds("fp32-dense", [0.9, 0.91], metric="test/f1")]
    assert only(compared(runs, metric=AUTO))[0].metric == Metric("test/f1", "test f1", 1, relative=False)


def test_perplexity_is_better_when_lower_and_its_margin_relative():
    control = seeds("fp32-dense", [80.0, 80.2, 79.8, 80.1], metric="test/perplexity")
    better = seeds("amp-dense", [79.0, 79.3, 78.9, 79.2], [3000, 3010, 2990, 3000], metric="test/perplexity")
    within = seeds("tf32-dense", [80.3, 80.5, 80.2, 80.4], metric="test/perplexity")
    worse = seeds("amp-2of4", [82.0, 82.3, 81.9, 82.2], metric="test/perplexity")
    group, rows = only(compared([*control, *better, *within, *worse]))
    assert {name: row.decision.verdict for name, row in rows.items() if row.decision} == {
        "amp-dense": Verdict.NO_LOSS, "tf32-dense": Verdict.NO_LOSS, "amp-2of4": Verdict.LOSS,
    }  # fmt: skip
    assert group.metric.name == "test/perplexity"
    assert group.notes[0] == "compared by test perplexity, since no run here has test/accuracy; the margin is relative to the control's"
    assert "at no worse perplexity" in group.train_verdict
    assert "margin 1 % of fp32-dense's" in group.train_verdict


def test_a_study_of_both_kinds_of_model():
    control = seeds("fp32-dense", [80.0, 80.2], metric="test/perplexity", model="lstm", data="wikitext2")
    comparison = compared([*control, *CONTROL, *AMP])
    assert [(group.model, group.metric.name) for group in comparison.groups] == [("lstm", "test/perplexity"), ("resnet18", "test/accuracy")]


def test_a_small_perplexity_is_printed_with_the_decimals_that_its_margin_needs():
    control = seeds("fp32-dense", [3.101, 3.103, 3.099, 3.102, 3.1], metric="test/perplexity")
    better = seeds("amp-dense", [3.098, 3.101, 3.098, 3.099, 3.097], [3000, 3010, 2990, 3000, 3000], metric="test/perplexity")
    group, _ = only(compared([*control, *better], metric=AUTO))
    assert "3.0986 ± 0.0015 against 3.1010 ± 0.0016 over 5 seeds, difference −0.0024 (−0.0035 to −0.0013)" in group.train_verdict
    assert judged_by({"test/perplexity": 3.1}, "test/perplexity", "min").spec == judged_by({"test/perplexity": 3.1}).spec == ".4f"
    assert {judged_by({"test/perplexity": value}).spec for value in (10.0, math.inf, None, "3")} == {".2f"}


def test_a_language_model_counts_by_its_perplexity_though_it_has_an_accuracy_too():
    runs = [
        replace(run, metrics=run.metrics | {"test/accuracy": accuracy})
        for setting, accuracy in (("fp32-dense", 0.26), ("amp-dense", 0.2))
        for run in seeds(setting, [80.0, 80.2, 79.9], metric="test/perplexity", model="lstm", data="wikitext2")
    ]
    found = {(group.model, group.metric.name): group for group in compared([*runs, *CONTROL, *AMP], metric=AUTO).groups}
    assert list(found) == [("lstm", "test/perplexity"), ("resnet18", "test/accuracy")]
    assert found["lstm", "test/perplexity"].notes == ()
    assert only(compared(runs, metric="test/accuracy"))[0].metric.name == "test/accuracy"


def test_another_control():
    group, rows = only(compared([*CONTROL, *AMP], control="amp-dense"))
    assert group.control == "amp-dense"
    assert rows["fp32-dense"].speedup.ratio == pytest.approx(1 / 3.1)


def test_seeds_that_compiled_otherwise_are_said():
    runs = [replace(run, compiled="default" if run.seed else None) for run in AMP]
    (note,) = (note for note in only(compared([*CONTROL, *runs]))[0].notes if "compiled" in note)
    assert note.startswith("amp-dense: not all seeds compiled alike (1 not compiled, ")
    assert "trainer.compile" in note


def test_different_versions_of_pytorch_are_said():
    runs = [made("amp-dense", run.seed, run.metrics["test/accuracy"], environment={"torch": "2.11.0"}) for run in AMP]
    assert "different versions of PyTorch: 2.11.0, 2.15.0" in only(compared([*CONTROL, *runs]))[0].notes


def test_code_that_was_changed_between_runs_is_said():
    target = "model._target_=my_net.Net"

    def notes(of_amp):
        runs = [(run, "a") for run in CONTROL] + [(run, of_amp) for run in AMP]
        return only(compared([replace(run, environment={"code": {target: digest}}) for run, digest in runs]))[0].notes

    said = f"the file of {target} was changed between runs, so a difference may come from that"
    assert said in notes("b")
    assert said not in notes("a")


def test_runs_that_continued_another_setting_are_said():
    before = {"trained_before_with": ["precision.mode=fp32", "seed=0"]}
    group, _ = only(compared([*CONTROL, replace(AMP[0], environment=before), *AMP[1:]]))
    of_runs = f"amp-dense: 1 of {len(AMP)} runs continued a checkpoint that was trained with precision.mode=fp32, seed=0"
    assert f"{of_runs}, so the results are not of this setting alone" in group.notes


def test_other_samples_under_the_same_settings_of_the_data_are_said():
    def notes(samples, **changes):
        changed = {key.replace("_", ".", 1): value for key, value in changes.items()}
        parts = [(run, "12", {}) for run in CONTROL] + [(run, samples, changed) for run in AMP]
        runs = [replace(run, environment={"samples": dict(zip(("test", "train"), at, strict=False))}, changes=c) for run, at, c in parts]
        return only(compared(runs))[0].notes

    said = "runs with the same settings of the data had other samples, so a difference may come from these"
    assert said in notes("13")
    assert said in notes("32", trainer_ema="0.9")
    assert said in notes("3"), "an older record has no checksum of the training samples"
    assert said not in notes("12")
    assert said not in notes("1")
    assert said not in notes("13", data_seq_len="32")


def on(host, runs):
    """The runs as recorded on this host; None: by a version of mpx that did not record it."""
    return [replace(run, environment=run.environment | ({"host": host} if host else {})) for run in runs]


ELSEWHERE = "ran on another host, or before or after a restart of the same one"


@pytest.mark.parametrize(("there", "here", "note"), [
    ("bbbbbb", "aaaaaa", f"{ELSEWHERE}, fp32-dense on host aaaaaa"),
    (None, "aaaaaa", "ran on an unknown host, fp32-dense on host aaaaaa"),
    ("bbbbbb", None, "ran on host bbbbbb, fp32-dense on an unknown host"),
])  # fmt: skip
def test_speeds_of_two_hosts_are_not_compared(there, here, note):
    runs = [*on(here, CONTROL), *on(there, AMP)]
    for found in (runs, from_csv(to_csv(runs), "results.csv")):
        group, rows = only(compared(found))
        assert (rows["amp-dense"].speedup, rows["amp-dense"].sooner, rows["amp-dense"].speed_note) == (None, None, note)
        assert f"amp-dense: speed not compared, {note}" in group.notes
        assert group.train_verdict == f"At no loss of accuracy: amp-dense. Which setting is fastest to train is not known ({note})."
        assert rows["amp-dense"].decision.verdict == Verdict.NO_LOSS
        assert rows["amp-dense"].metric.n == 5


def test_speeds_of_one_host_are_compared():
    group, rows = only(compared(on("aaaaaa", [*CONTROL, *AMP])))
    assert rows["amp-dense"].speedup.ratio == pytest.approx(3.1)
    assert group.notes == ()


def test_runs_on_another_host_than_most_of_the_control_are_left_out_of_the_speed_only():
    control = [*on("aaaaaa", CONTROL[:3]), *on("bbbbbb", CONTROL[3:])]
    amp = [*on("bbbbbb", AMP[:2]), *on("aaaaaa", AMP[2:4]), *on("cccccc", AMP[4:])]
    group, rows = only(compared([*control, *amp]))
    assert (rows["fp32-dense"].throughput.n, rows["amp-dense"].throughput.n, rows["amp-dense"].metric.n) == (3, 2, 5)
    assert rows["amp-dense"].speedup.ratio == pytest.approx(np.mean([3090, 3105]) / np.mean([1000, 1010, 990]))
    assert rows["amp-dense"].timed.n == 2
    assert f"fp32-dense: speed of 3 of 5 completed runs, without 2: {ELSEWHERE}" in group.notes
    assert f"amp-dense: speed of 2 of 5 completed runs, without 3: {ELSEWHERE}" in group.notes


def test_of_two_hosts_with_as_many_runs_of_the_control_the_one_with_more_others_counts():
    control = [*on("aaaaaa", CONTROL[:2]), *on("bbbbbb", CONTROL[2:4])]
    _, rows = only(compared([*control, *on("bbbbbb", AMP)]))
    assert rows["amp-dense"].speedup.ratio == pytest.approx(3100 / np.mean([990, 1005]))


def test_of_another_kind_of_host_its_kind_is_said():
    there = [replace(run, environment={"torch": "2.11.0", "host": "bbbbbb"}) for run in AMP]
    _, rows = only(compared([*on("aaaaaa", CONTROL), *there]))
    assert rows["amp-dense"].speed_note == "measured with torch 2.11.0, fp32-dense with torch 2.15.0"


def by(mpx, runs, *, git=None, dirty=False):
    """The runs as this version of mpx recorded them, at this commit. mpx: its release, with a digest of its source in newer records."""
    commit = {"git": git, "git_dirty": dirty} if git else {}
    return [replace(run, environment=run.environment | {"mpx": mpx} | commit) for run in runs]


ONE, TWO = 40 * "1", 40 * "2"  # commits


@pytest.mark.parametrize(("control", "amp", "here", "there"), [
    (by("0.1.0+1a2b3c4d", CONTROL), by("0.1.0+99999999", AMP), "0.1.0+99999999", "0.1.0+1a2b3c4d"),
    (by("0.1.0", CONTROL, git=ONE), by("0.1.0", AMP, git=TWO), "0.1.0 (git 2222222222)", "0.1.0 (git 1111111111)"),
    (by("0.1.0", CONTROL, git=ONE), by("0.1.0", AMP, git=ONE, dirty=True),
     "0.1.0 (git 1111111111, with changes)", "0.1.0 (git 1111111111)"),
    (by("0.1.0+1a2b3c4d", CONTROL, git=ONE), by("0.1.0", AMP, git=ONE), "0.1.0 (git 1111111111)", "0.1.0+1a2b3c4d"),
])  # fmt: skip
def test_speeds_of_two_versions_of_mpx_are_not_compared(control, amp, here, there):
    """An older record, whose version does not tell mpx's source files, has the commit of its checkout."""
    runs, note = [*control, *amp], f"measured with mpx {here}, fp32-dense with mpx {there}"
    for found in (runs, from_csv(to_csv(runs), "results.csv")):
        group, rows = only(compared(found))
        assert (rows["amp-dense"].speedup, rows["amp-dense"].sooner, rows["amp-dense"].speed_note) == (None, None, note)
        assert f"amp-dense: speed not compared, {note}" in group.notes
        assert (rows["amp-dense"].decision.verdict, rows["amp-dense"].metric.n) == (Verdict.NO_LOSS, 5)


def test_a_run_with_an_unknown_mpx_is_not_compared():
    _, rows = only(compared([*by("0.1.0", CONTROL), *AMP]))
    assert rows["amp-dense"].speed_note == "measured with an unknown version of mpx, fp32-dense with mpx 0.1.0"


@pytest.mark.parametrize("alike", [
    [*by("0.1.0+1a2b3c4d", CONTROL, git=ONE), *by("0.1.0+1a2b3c4d", AMP, git=TWO, dirty=True)],  # which left mpx as it was
    [*by("0.1.0", CONTROL, git=ONE), *by("0.1.0", AMP, git=ONE)],
    [*by("0.1.0", CONTROL), *by("0.1.0", AMP)],
])  # fmt: skip
def test_speeds_of_one_version_of_mpx_are_compared(alike):
    group, rows = only(compared(alike))
    assert rows["amp-dense"].speedup.ratio == pytest.approx(3.1)
    assert group.notes == ()


def test_the_version_of_most_of_the_controls_runs_counts_and_others_are_left_out_of_the_speed_only():
    control = [*by("0.1.0+aaaaaaaa", CONTROL[:3]), *by("0.1.0+bbbbbbbb", CONTROL[3:])]
    amp = [*by("0.1.0+bbbbbbbb", AMP[:2]), *by("0.1.0+aaaaaaaa", AMP[2:])]
    group, rows = only(compared([*control, *amp]))
    assert (rows["fp32-dense"].throughput.n, rows["amp-dense"].throughput.n, rows["amp-dense"].metric.n) == (3, 3, 5)
    assert rows["amp-dense"].speedup.ratio == pytest.approx(np.mean([3090, 3105, 3095]) / np.mean([1000, 1010, 990]))
    assert rows["amp-dense"].timed.n == 3
    assert "all settings: speed of 3 of 5 completed runs, without 2: measured with mpx 0.1.0+bbbbbbbb" in group.notes
    tied = [*by("0.1.0+aaaaaaaa", CONTROL[:2]), *by("0.1.0+bbbbbbbb", CONTROL[2:4])]
    _, rows = only(compared([*tied, *by("0.1.0+bbbbbbbb", AMP)]))
    assert rows["amp-dense"].speedup.ratio == pytest.approx(3100 / np.mean([990, 1005]))


@pytest.mark.parametrize(("host", "note"), [
    ("aaaaaa", "measured with mpx 0.1.0+22222222, fp32-dense with mpx 0.1.0+11111111"),
    ("bbbbbb", f"{ELSEWHERE}, fp32-dense on host aaaaaa"),
])  # fmt: skip
def test_of_another_host_with_another_mpx_the_host_is_said(host, note):
    _, rows = only(compared([*by("0.1.0+11111111", on("aaaaaa", CONTROL)), *by("0.1.0+22222222", on(host, AMP))]))
    assert rows["amp-dense"].speed_note == note


def any_ways(rng):
    return tuple(
        served(
            rng.choice(["fp32", "int8"]), 1 + rng.random(), sparse=rng.random() < 0.5, device=rng.choice("ab"),
            batch=(1, rng.choice([2, 4])), exclusive=rng.choice([True, True, None]), accurate=rng.random() < 0.8,
        )
        for _ in range(rng.choice([0, 1, 3]))
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_any_mixture_of_runs_is_compared(seed):
    """Each run is in one row, no setting twice in a group, and nothing printed is not a number."""
    rng = random.Random(seed)
    runs = [
        made(
            name + change, number, rng.choice([1.0, 0.95, rng.random(), None]), rng.choice([1000.0, 1 + rng.random(), None]),
            metric=rng.choice(["test/accuracy"] * 3 + ["test/perplexity"]), model=rng.choice("xxy"), device=rng.choice(["a", "a", None]),
            exclusive=rng.choice([True, True, None, False]), emulated=rng.choice([False, False, True]), batch_size=rng.choice([2, 2, 3]),
            status=rng.choice(["completed"] * 4 + ["diverged"]), served=any_ways(rng),
        )
        for name in rng.sample(["fp32-dense", "amp-dense", "amp-2of4", "tf32-dense"], rng.randint(1, 4))
        for change in rng.sample(["", " data.batch_size=2", " data.batch_size=2 optimizer.lr=0.1"], rng.randint(1, 2))
        for number in rng.sample(range(6), rng.randint(1, 5))
    ]  # fmt: skip
    comparison = compared(runs, confidence=rng.choice([0.95, 0.5]))
    rows = [(group.model, text_of(group.changes), group.control, row.setting) for group in comparison.groups for row in group.rows]
    assert len(set(rows)) == len(rows)
    assert sum(len(row.runs) for group in comparison.groups for row in group.rows) == len(runs)
    said = " ".join(" ".join([group.train_verdict, group.serve_verdict, *group.notes]) for group in comparison.groups)
    assert not {"nan", "inf", "None"} & set(re.findall(r"\w+", said))


def test_a_decision_that_the_interval_contradicts_is_called_narrow():
    """The test is one-sided: it can find no loss where the two-sided interval, which is wider below, reaches the margin."""
    dense = seeds("fp32-dense", [0.9512, 0.9510, 0.9504, 0.9478, 0.9510])  # ResNet-18 on CIFAR-10, FP16
    pruned = seeds("fp32-2of4", [0.9412, 0.9427, 0.9453, 0.9449, 0.9429])
    group, rows = only(compared([*dense, *pruned, *seeds("amp-dense", [0.9510, 0.9511, 0.9502, 0.9480, 0.9511])]))
    assert rows["amp-dense"].decision.verdict == rows["fp32-2of4"].decision.verdict == Verdict.NO_LOSS
    assert rows["fp32-2of4"].decision.low < -0.01 < rows["amp-dense"].decision.low
    assert group.notes == (f"fp32-2of4: {NARROW}",)
    dense = seeds("fp32-dense", [100.0, 100.0, 100.1, 99.9, 100.0], metric="test/perplexity")
    group, rows = only(compared([*dense, *seeds("amp-dense", [100.3, 101.1, 100.5, 100.8, 100.2], metric="test/perplexity")]))
    assert rows["amp-dense"].decision.verdict == Verdict.NO_LOSS
    assert rows["amp-dense"].decision.high > 1
    assert group.notes[-1] == f"amp-dense: {NARROW}"


def test_over_which_seeds_is_said_whatever_the_test_was():
    values = [0.950, 0.951, 0.952, 0.953, 0.954]
    group, rows = only(compared([*seeds("fp32-dense", values[:4]), *seeds("amp-dense", values)]))
    assert rows["amp-dense"].decision.method == Method.WELCH
    assert group.notes == ("amp-dense: test accuracy compared over the 4 seeds shared with the control",)


def test_other_defaults_are_noted():
    runs = [replace(run, config={"optimizer.lr": 0.1 + run.seed // 3}) for run in CONTROL]
    assert any(note.startswith("runs differ in optimizer.lr (0.1 and 1.1)") for note in only(compared(runs))[0].notes)
