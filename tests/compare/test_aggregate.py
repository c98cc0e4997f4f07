"""From runs to groups, rows, decisions, speed-ups and notes."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from made_runs import AMP, CONTROL, compared, made, only, reread, seeds, served

from mpx.compare.comparison import Method, Verdict
from mpx.compare.run import text_of


def test_the_usual_study():
    losing = seeds("amp-2of4", [0.930, 0.931, 0.929, 0.933, 0.930], [3200] * 5)
    group, rows = only(compared([*losing, *AMP, *CONTROL]))
    # the control, then the fastest first
    assert [row.setting for row in group.rows] == ["fp32-dense", "amp-2of4", "amp-dense"]
    assert (group.control, group.metric.name, group.changes, group.notes) == (
        "fp32-dense",
        "test/accuracy",
        {},
        (),
    )
    amp = rows["amp-dense"]
    assert (amp.decision.verdict, amp.decision.method, amp.decision.more_seeds) == (
        Verdict.NO_LOSS,
        Method.PAIRED,
        None,
    )
    assert amp.speedup.ratio == pytest.approx(3.1)
    assert amp.speedup.low < 3.1 < amp.speedup.high
    assert rows["amp-2of4"].decision.verdict == Verdict.LOSS
    assert rows["fp32-dense"].decision is None


def test_holm_over_the_settings_of_a_group():
    rng = np.random.default_rng(1)
    others = [
        run
        for name in ("amp-dense", "tf32-dense", "amp-2of4")
        for run in seeds(name, list(0.947 + 0.004 * rng.random(5)))
    ]
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


def test_a_diverged_seed_counts_against_its_setting():
    diverged = [*AMP[:4], made("amp-dense", 4, None, status="diverged", metrics={})]
    decision = only(compared([*CONTROL, *diverged]))[1]["amp-dense"].decision
    assert (decision.verdict, decision.reason) == (Verdict.LOSS, "1 of 5 seeds diverged")
    assert decision.p is not None
    assert decision.p_decided is None  # no test decided


REFUSED = [
    ({"emulated": True}, "emulated: not the speed of this format"),
    ({"exclusive": False}, "other programs used the device"),
    ({"exclusive": False, "cpu_used_by_others": 0.2}, "other programs used the CPU"),
    ({"exclusive": None}, "unknown whether something else used the device"),
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
    assert bool(marked) == ("used the" in note)
    assert f"amp-dense: speed not compared, {note}{marked}" in group.notes


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


def test_memory_is_that_of_one_device():
    """Neither a mean of a GPU's memory and of a host's RAM, nor of two kinds of GPU."""
    ram = [
        made("amp-dense", seed, device="a CPU, 8 threads", exclusive=None, peak_gib=40.0)
        for seed in (5, 6, 7, 8, 9, 10)
    ]
    rows = only(compared([*CONTROL, *AMP, *ram]))[1]
    assert (rows["amp-dense"].peak_gib.mean, rows["amp-dense"].peak_gib.n) == (2.5, 5)
    rows = only(
        compared(
            [*CONTROL, *ram, made("amp-dense", device="a CPU, 4 threads", exclusive=None, peak_gib=20.0)]
        )
    )[1]
    assert (rows["amp-dense"].peak_gib.mean, rows["amp-dense"].peak_gib.n) == (40.0, 6)


def test_only_the_runs_whose_speed_counts_are_averaged():
    shared = [*AMP[:4], made("amp-dense", 4, 0.9541, 100.0, exclusive=False)]
    row = only(compared([*CONTROL, *shared]))[1]["amp-dense"]
    assert (row.throughput.n, row.speed_note) == (4, None)
    assert row.throughput.mean == pytest.approx(3101.25)
    assert row.metric.n == 5


def test_perplexity_is_better_when_lower_and_its_margin_relative():
    control = seeds("fp32-dense", [80.0, 80.2, 79.8, 80.1], metric="test/perplexity")
    better = seeds("amp-dense", [79.0, 79.3, 78.9, 79.2], [3000, 3010, 2990, 3000], metric="test/perplexity")
    within = seeds("tf32-dense", [80.3, 80.5, 80.2, 80.4], metric="test/perplexity")
    worse = seeds("amp-2of4", [82.0, 82.3, 81.9, 82.2], metric="test/perplexity")
    group, rows = only(compared([*control, *better, *within, *worse], metric="auto"))
    assert {name: row.decision.verdict for name, row in rows.items() if row.decision} == {
        "amp-dense": Verdict.NO_LOSS, "tf32-dense": Verdict.NO_LOSS, "amp-2of4": Verdict.LOSS,
    }  # fmt: skip
    assert group.metric.name == "test/perplexity"
    assert "with no worse perplexity" in group.train_verdict
    assert group.evidence == (
        "Perplexity 79.10 against 80.03, difference −0.92 (−1.00 to −0.85); margin 1 % of FP32's."
    )


def on(host, runs):
    """The runs as recorded on this host; None: by a version of mpx that did not record it."""
    return [replace(run, environment=run.environment | ({"host": host} if host else {})) for run in runs]


def by(mpx, runs, **commit):
    """The runs as this version of mpx recorded them: its release, with a digest of its source in newer
    records; commit: git, git_dirty."""
    return [replace(run, environment=run.environment | {"mpx": mpx} | commit) for run in runs]


ELSEWHERE = "ran on another host, or before or after a restart of the same one"
ONE, TWO = 40 * "1", 40 * "2"  # commits


@pytest.mark.parametrize(("control", "amp", "note"), [
    (on("aaaaaa", CONTROL), on("bbbbbb", AMP), f"{ELSEWHERE}, fp32-dense on host aaaaaa"),
    (on("aaaaaa", CONTROL), AMP, "ran on an unknown host, fp32-dense on host aaaaaa"),
    (by("0.1.0+1a2b3c4d", CONTROL), by("0.1.0+99999999", AMP),
     "measured with mpx 0.1.0+99999999, fp32-dense with mpx 0.1.0+1a2b3c4d"),
    (by("0.1.0", CONTROL, git=ONE), by("0.1.0", AMP, git=TWO, git_dirty=True),
     "measured with mpx 0.1.0 (git 2222222222, with changes), fp32-dense with mpx 0.1.0 (git 1111111111)"),
])  # fmt: skip
def test_speeds_of_two_hosts_or_versions_of_mpx_are_not_compared(control, amp, note):
    """An older record, whose version does not tell mpx's source files, has the commit of its checkout."""
    row = only(compared(reread([*control, *amp])))[1]["amp-dense"]
    assert (row.speedup, row.sooner, row.speed_note) == (None, None, note)
    assert (row.decision.verdict, row.metric.n) == (Verdict.NO_LOSS, 5)


def any_ways(rng):
    return tuple(
        served(
            rng.choice(["fp32", "int8"]), 1 + rng.random(), sparse=rng.random() < 0.5,
            device=rng.choice("ab"),
            batch=(1, rng.choice([2, 4])), exclusive=rng.choice([True, True, None]),
            accurate=rng.random() < 0.8,
        )
        for _ in range(rng.choice([0, 1, 3]))
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_any_mixture_of_runs_is_compared(seed):
    """Each run is in one row, no setting twice in a group, and nothing printed is not a number."""
    rng = random.Random(seed)
    runs = [
        made(
            name + change, number, rng.choice([1.0, 0.95, rng.random(), None]), rng.choice([1000.0,
            1 + rng.random(), None]),
            metric=rng.choice(["test/accuracy"] * 3 + ["test/perplexity"]), model=rng.choice("xxy"),
            device=rng.choice(["a", "a", None]),
            exclusive=rng.choice([True, True, None, False]), emulated=rng.choice([False, False, True]),
            batch_size=rng.choice([2, 2, 3]),
            status=rng.choice(["completed"] * 4 + ["diverged"]), served=any_ways(rng),
        )
        for name in rng.sample(["fp32-dense", "amp-dense", "amp-2of4", "tf32-dense"], rng.randint(1, 4))
        for change in rng.sample(["", " data.batch_size=2", " data.batch_size=2 optimizer.lr=0.1"],
        rng.randint(1, 2))
        for number in rng.sample(range(6), rng.randint(1, 5))
    ]  # fmt: skip
    comparison = compared(runs, confidence=rng.choice([0.95, 0.5]))
    rows = [
        (group.model, text_of(group.changes), group.control, row.setting)
        for group in comparison.groups
        for row in group.rows
    ]
    assert len(set(rows)) == len(rows)
    assert sum(len(row.runs) for group in comparison.groups for row in group.rows) == len(runs)
    said = " ".join(
        " ".join([group.train_verdict, group.evidence, group.serve_verdict, *group.notes])
        for group in comparison.groups
    )
    assert not {"nan", "inf", "None"} & set(re.findall(r"\w+", said))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"torch": "2.11"}, {"torch": "2.12"}, "PyTorch"),
        (
            {"code": {"model._target_=a.Net": "1"}},
            {"code": {"model._target_=a.Net": "2"}},
            "the file of model._target_=a.Net",
        ),
    ],
)
def test_what_runs_differ_in_beyond_their_settings_is_said(first, second, said):
    runs = [replace(run, environment=first) for run in CONTROL] + [
        replace(run, environment=second) for run in AMP
    ]
    note = f"runs differ in more than their settings: {said}; a difference may come from that"
    assert note in only(compared(runs))[0].notes
    alike = [replace(run, environment=first) for run in (*CONTROL, *AMP)]
    assert not any("more than their settings" in note for note in only(compared(alike))[0].notes)
