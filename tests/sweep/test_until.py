"""until=decided: which jobs each round has, when it ends, and what it says it cost.

The real sweep is one of tests/test_readme.py.
"""

import json
from dataclasses import asdict

import pytest
from made_runs import record, write
from omegaconf import OmegaConf
from refused import assert_refused

from mpx.compare.comparison import Verdict
from mpx.compare.looks import Plan
from mpx.errors import UserError
from mpx.sweep.until import Looks

UNDECIDED = str(Verdict.UNDECIDED)
PLAN = Plan(margin=0.01, confidence=0.95, control="auto", max_seeds=12, looks=3)
SETTINGS = [("precision=fp32",), ("precision=amp",), ("precision=tf32",)]
BASE = [0.95, 0.951, 0.952, 0.953, 0.9505, 0.9515, 0.9525, 0.9535, 0.951, 0.952, 0.953, 0.954]
NEAR = [0.0005, -0.0004, 0.0003, -0.0006] * 3
WIDE = [0.007, -0.008, 0.003, -0.005, -0.016, 0.004, -0.018, 0.003, 0.004, -0.02, 0.005, -0.016]


@pytest.fixture
def sweep(tmp_path):
    """train(jobs) leaves the records and reports of these jobs, as if they had trained."""
    config = OmegaConf.create(
        {"until": asdict(PLAN), "output_dir": str(tmp_path), "study": "s", "if_exists": "auto"}
    )
    config.hydra = {"sweep": {"dir": str(tmp_path / "_sweep")}}
    away = {"fp32": [0.0] * 12, "amp": NEAR, "tf32": WIDE}

    def train(jobs, failing=()):
        for number, overrides in enumerate(jobs, len(list((tmp_path / "_sweep").glob("job*")))):
            precision, seed = overrides[0].partition("=")[2], int(overrides[-1].partition("=")[2])
            folder = tmp_path / "s" / f"resnet18-cifar10-{precision}-dense" / f"seed{seed}"
            if (precision, seed) not in failing:
                made = record(precision=precision, seed=seed, accuracy=BASE[seed] + away[precision][seed])
                made["config"]["until"] = asdict(PLAN)
                write(folder, made)
            report = {
                "job": number,
                "overrides": overrides,
                "folder": str(folder),
                "skipped": False,
                "seconds": 10.0,
                "status": "completed",
            }
            (tmp_path / "_sweep" / f"job{number}").mkdir(parents=True)
            (tmp_path / "_sweep" / f"job{number}" / "report.json").write_text(json.dumps(report))

    return config, train


def numbers(jobs):
    """precision -> its seeds."""
    found = {}
    for setting, seed in jobs:
        found.setdefault(setting.partition("=")[2], []).append(int(seed.partition("=")[2]))
    return found


def test_only_undecided_settings_and_their_control_go_on(sweep, capsys):
    config, train = sweep
    looks, trained = Looks(config), []
    while jobs := looks.further_jobs(SETTINGS):
        trained.append(numbers(jobs))
        train(jobs)
        assert [job[-1] for job in jobs] == sorted(
            (job[-1] for job in jobs), key=lambda word: int(word.partition("=")[2])
        )
    first, second = [0, 1, 2, 3], [4, 5, 6, 7]
    assert trained[:2] == [{"fp32": first, "amp": first, "tf32": first}, {"fp32": second, "tf32": second}]
    assert len(trained) == 3
    said = capsys.readouterr().out
    assert said.splitlines() == [
        f"look {number} of 3, at {4 * number} seeds, resnet18 on cifar10: {of_amp}tf32-dense {UNDECIDED}"
        for number, of_amp in ((1, "amp-dense no loss; "), (2, ""), (3, ""))
    ]
    assert looks.cost() == "until=decided: 28 runs, 28 of them now, in 5 min."


def test_started_again_it_goes_on_where_it_was(sweep):
    config, train = sweep
    looks = Looks(config)
    for _ in range(2):
        train(looks.further_jobs(SETTINGS))
    again = Looks(config)
    assert set(map(len, numbers(again.further_jobs(SETTINGS)).values())) == {4}, (
        "these runs are found finished"
    )
    assert numbers(again.further_jobs(SETTINGS)) == {"fp32": [*range(4, 12)], "tf32": [*range(4, 12)]}


def test_a_setting_whose_job_failed_does_not_go_on_for_ever(sweep, capsys):
    config, train = sweep
    looks = Looks(config)
    train(looks.further_jobs(SETTINGS), failing={("tf32", 2)})
    assert looks.further_jobs(SETTINGS) == []
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "has no result" in line)
    assert said.startswith("precision=tf32: seed 2 has no result, ")
    assert "retry_failed=true" in said


def write_planned(folder, seed, **changed):
    planned = record(seed=seed)
    write(
        folder / "s" / "fp32" / f"seed{seed}",
        planned | {"config": planned["config"] | {"until": asdict(PLAN) | changed}},
    )


def test_a_study_whose_results_may_have_been_seen_is_refused(sweep, tmp_path):
    config, _ = sweep
    write(tmp_path / "s" / "fp32" / "seed0", record())
    with pytest.raises(
        UserError,
        match=r"study=s has runs that no plan of looks asked for, as by seed=. Use another study=NAME.$",
    ):
        Looks(config)
    write_planned(tmp_path, 1)
    with pytest.raises(UserError, match="study=s has runs that no plan of looks asked for"):
        Looks(config)
    write_planned(tmp_path, 0)
    Looks(config)
    for config.if_exists in ("new", "overwrite"):
        with pytest.raises(
            UserError,
            match=f"if_exists={config.if_exists} trains seeds again whose results a look may have seen, ",
        ):
            Looks(config)
    config.if_exists = "auto"
    for seed in (0, 1):
        write_planned(tmp_path, seed, margin=0.02)
    with pytest.raises(
        UserError, match=r'study=s was planned with .*"margin": 0.02, .*and this plan is .*"margin": 0.01'
    ):
        Looks(config)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-m until=decided seed=0,1", "seed=0,1: until=decided chooses the seeds itself. Leave seed out"),
        ("-m until=decided", "until=decided compares settings, and this sweep has one. Give several values"),
        ("-m until=decided study=a,b", "study=a,b: with until=decided a sweep has one study. Start one "
                                       "sweep"),
        ("-m until=decided until.margin=0.01,0.02", "until.margin=0.01,0.02: with until=decided a sweep "
                                                    "has one"),
        ("-m until=decided until.looks=1 until.max_seeds=3", "until.max_seeds=3 must be a whole number of "
                                                             "at least 4"),
        ("until=decided", "until=decided trains settings in rounds of seeds, and this is a single run. Use"),
        ("-m until.margin=0.01", "until.margin belongs to a sweep that trains until each setting is "
                                 "decided."),
        ("until=decided until.max_seeds=10", "until.max_seeds=10 is less than 4 seeds for each of "
                                             "until.looks=5."),
        ("until=decided until.margin=1", "until.margin=1 must be a number above 0 and below 1."),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_one_line(train, words, line):
    assert_refused(train(*words.split(), "trainer.accelerator=cpu"), f"error: {line}")
