"""gpu_share: several jobs of a sweep on one device, whose settings' speed is measured alone after the last job."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from made_runs import record
from processes import Fork, wait_for
from refused import assert_refused

from mpx.measure.environment import environment
from mpx.record.result import ALONE, BESIDE, place_of
from mpx.sweep import alone as measuring
from mpx.sweep import share, warm
from mpx.sweep.alone import _elsewhere, _useless, _write, unmeasured

FEW = ["model=mlp", "trainer.max_epochs=2", "trainer.limit_train_batches=8", "trainer.warmup_steps=2"]
SAYS_THAT_IT_TRAINS = """
from pathlib import Path
from mpx.training.module import TrainingModule

step = TrainingModule.training_step

def noted(self, batch, batch_idx):
    Path("trains").touch()
    return step(self, batch, batch_idx)

TrainingModule.training_step = noted
"""
FIRST = ALONE.format(seed=0)


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ("-m seed=0,1", ""),
        ("gpu_share=2", ""),
        ("-m gpu_share=1", ""),
        ("-m gpu_share=3", "hydra/launcher=joblib hydra.launcher.n_jobs=6"),
        ("--multirun +gpu_share=3 trainer.accelerator=cpu", "hydra/launcher=joblib hydra.launcher.n_jobs=3"),
        ("-m gpu_share=3 +trainer={accelerator:cpu}", "hydra/launcher=joblib hydra.launcher.n_jobs=3"),
        ("-m gpu_share=3 hydra/launcher=joblib", "hydra.launcher.n_jobs=6"),
        ("-m gpu_share=3 hydra.launcher.n_jobs=2", "hydra/launcher=joblib"),
        ("-m gpu_share=3 hydra/launcher=basic", ""),
    ],
)
def test_gpu_share_alone_chooses_the_launcher(monkeypatch, words, added):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert share.with_launcher(words.split()) == [*words.split(), *added.split()]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("gpu_share=2", "gpu_share=2 runs jobs of a sweep beside one another, and this is a single run."),
        ("gpu_share=0", "gpu_share=0 must be a whole number of at least 1 and at most 64."),
        ("-m gpu_share=1,2", "gpu_share=1,2 must be a whole number"),
        ("-m gpu_share=2 hydra/launcher=basic", "gpu_share=2 runs jobs beside one another, and hydra/launcher=basic does not."),
        ("-m gpu_share=2 trainer.devices=2", "gpu_share=2 puts several jobs on one device, and trainer.devices=2."),
        ("-m gpu_share=2 hydra.launcher.n_jobs=3", "hydra.launcher.n_jobs=3 is more than the 2 jobs that gpu_share=2 allows here."),
        ("-m gpu_share=2 +hydra.sweeper.direction=[maximize,maximize]", "gpu_share=2: this search looks for throughput"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(train, words, line):
    assert_refused(train(*words.split(), "trainer.accelerator=cpu"), f"error: {line}")


@pytest.fixture
def alone(train, tmp_path, monkeypatch):
    """alone(*words) -> the report of a process that measures nothing but its speed, and what it printed."""

    def measure(*words):
        report = tmp_path / "speed" / "report.json"
        report.parent.mkdir()
        for name, value in (("SPEED", "alone"), ("REPORT", str(report)), ("PARENT", str(os.getpid()))):
            monkeypatch.setenv(f"MPX_SWEEP_{name}", value)
        monkeypatch.setattr("mpx.training.alone.SECONDS", 0.2)
        ran = train(*words)
        assert ran.code == 0, ran.err
        assert not ran.outputs.exists(), "it leaves no run"
        assert not list(tmp_path.rglob("*.ckpt"))
        return json.loads(report.read_text()), ran

    return measure


def test_the_speed_of_a_setting_without_its_run(alone):
    """It is pruned before the first step, as its run ends, and chosen for as the whole run, though it ends long before that."""
    report, ran = alone(
        "model=mlp", "sparsity=2of4", "sparsity.start=0.9", "trainer.max_epochs=1000", "data.batch_size=1024", "precision=amp_bf16",
    )  # fmt: skip
    assert "step 0: " in ran.out
    assert "pruned to 2of4" in ran.out
    speed = report["record"]["speed"]
    assert 100 <= speed["measured_steps"] < 1000
    assert speed["train_samples_per_s"] > 0
    assert speed["step_ms_p50"] < speed["step_ms_p95"]
    assert speed["chosen"]["compile"] == "off"
    assert speed["host"] == environment()["host"]
    assert speed["threads"] == torch.get_num_threads()  # PyTorch may use fewer than OMP_NUM_THREADS: no more than there are cores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "pruned"),
    [
        ("sparsity=2of4 sparsity.recipe=gradual sparsity.start_step=5", True),
        ("sparsity=2of4 sparsity.recipe=sr_ste", True),
        ("sparsity=unstructured sparsity.recipe=one_shot", False),
        ("sparsity=2of4 sparsity.permute=true sparsity.sensitivity=true", True),
        ("profile=true audit=true trainer.ema_decay=0.9 trainer.checkpoint_every_n_steps=5", False),
    ],
)
def test_what_a_run_does_beside_its_steps_is_left_out(alone, words, pruned):
    """A recipe that prunes after training trains dense, and is timed so."""
    report, ran = alone("model=mlp", "trainer.max_steps=30", *words.split())
    assert report["record"]["speed"]["measured_steps"] == 20
    assert ("step 0: " in ran.out) is pruned
    assert "audit of" not in ran.out


@pytest.fixture
def runs(tmp_path):
    """Two seeds of one setting as their jobs leave them, and a third run that had no time for a speed."""

    def report(job, setting, seed, speed=1000.0):
        found = record(seed=seed, speed=speed)
        found["speed"] |= {"exclusive": False, "measured": BESIDE}
        folder = tmp_path / setting / f"seed{seed}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(found))
        return {"job": job, "status": "completed", "folder": str(folder), "record": {"speed": found["speed"]}}

    return [report(0, "a", 1, 1001.0), report(1, "a", 0), report(2, "b", 0, None)]


def speeds(reports):
    return [json.loads((Path(report["folder"]) / "result.json").read_text())["speed"] for report in reports]


MEASURED = {"train_samples_per_s": 3000.0, "exclusive": True, "exclusive_reason": None, "time_to_train_s": 2.5, "time_to_train_parts_s": {}}


def test_all_runs_of_a_setting_get_its_speed(runs):
    (setting,) = unmeasured(runs)
    assert setting.name == "a"
    assert _write(MEASURED, setting) is None
    for found, report, own in zip(speeds(runs[:2]), runs, (1001.0, 1000.0), strict=False):
        assert found == report["record"]["speed"]
        assert (found["train_samples_per_s"], found["exclusive"], found["measured"]) == (3000.0, True, FIRST)
        assert (found["time_to_train_s"], found["time_to_train_s_reason"]) == (None, f"trained {BESIDE}")
        assert (found["beside"]["train_samples_per_s"], found["beside"]["time_to_train_s"]) == (own, 60.0)
    assert unmeasured(runs) == [], "no setting is measured twice"


def test_a_seed_that_comes_later_is_measured_with_the_others(runs):
    (setting,) = unmeasured(runs[1:])
    _write(MEASURED, setting)
    (setting,) = unmeasured(runs)
    _write(MEASURED | {"train_samples_per_s": 3100.0}, setting)
    assert [found["train_samples_per_s"] for found in speeds(runs[:2])] == [3100.0, 3100.0]
    assert [found["beside"]["train_samples_per_s"] for found in speeds(runs[:2])] == [1001.0, 1000.0]


def test_a_run_that_was_trained_again_meanwhile_keeps_its_record(runs):
    (setting,) = unmeasured(runs)
    file = Path(runs[0]["folder"]) / "result.json"
    again = json.loads(file.read_text())
    again["environment"]["started_at"] = "2026-11-21T15:00:00+00:00"
    file.write_text(json.dumps(again))
    assert _write(MEASURED, setting) == f"{file.parent} holds another run by now"
    assert json.loads(file.read_text()) == again
    assert runs[0]["record"]["speed"]["train_samples_per_s"] == 1001.0


def test_the_starters_of_jobs_beside_one_another_end_before_speed_is_measured(runs, tmp_path, monkeypatch):
    """Their environment is another one, and a starter for the processes that measure is made where there is none."""
    monkeypatch.setattr(warm, "_idle", [SimpleNamespace(end=lambda: None)])
    left = []
    monkeypatch.setattr(measuring, "_measure", lambda *_: left.append(len(warm._idle)) or {"status": "failed", "line": "on purpose"})
    assert measuring.measure_alone(None, runs, tmp_path) == 1
    assert left == [0]


def test_what_was_not_measured_alone_there_is_no_speed_of_the_setting(runs):
    (setting,) = unmeasured(runs)
    place = place_of(setting.records[0]["environment"])
    found = {"status": "completed", "line": "", "record": {"speed": MEASURED, "place": place}}
    assert _useless(found) is None
    assert _elsewhere(found, setting) is None
    assert _useless({"status": "failed", "line": "out of memory"}) == "out of memory"
    shared = found["record"] | {"speed": {"exclusive": False, "exclusive_reason": "1 other process on the device"}}
    assert _useless(found | {"record": shared}) == "1 other process on the device"
    later = found["record"] | {"place": place_of(setting.records[0]["environment"] | {"driver": "581"})}
    assert "here 581. Start the sweep with that again" in _elsewhere(found | {"record": later}, setting), "the driver is another by now"
    elsewhere = found["record"] | {"place": ["another GPU", *place[1:]]}
    assert _elsewhere(found | {"record": elsewhere}, setting).startswith("it was trained with NVIDIA H200, here another GPU. Start")
    setting.records[-1]["environment"]["device"] = ["another GPU"]
    assert _elsewhere(found, setting).startswith("it was trained with another GPU, here NVIDIA H200. "), "one seed ran elsewhere"


@pytest.mark.slow
def test_a_process_that_measures_ends_at_once_by_sigterm(tmp_path):
    """It has nothing to save."""
    report = tmp_path / "speed" / "report.json"
    report.parent.mkdir()
    variables = {"MPX_SWEEP_SPEED": "alone", "MPX_SWEEP_REPORT": str(report), "MPX_SWEEP_PARENT": str(os.getpid())}
    (folder := tmp_path / "here").mkdir()
    words = ("model=mlp", "trainer.max_epochs=2000", "trainer.warmup_steps=50000")  # which end long after the test
    process = Fork(*words, folder=folder, env=variables, before=SAYS_THAT_IT_TRAINS)
    wait_for(lambda: (folder / "trains").exists())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143, process.err
    assert json.loads(report.read_text())["status"] == "interrupted"


def weights(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.slow
def test_beside_one_another_as_one_by_one(forked, tmp_path):
    """Same weights and metrics; one speed per setting; and a sweep that is killed while it measures finishes what is missing."""
    grid = ["-m", *FEW, "seed=0,1", "precision=fp32,amp_bf16"]
    assert forked(*grid, "study=one_by_one").code == 0
    shared = [*grid, "study=shared", "gpu_share=2"]
    sweep = Fork(*shared, folder=tmp_path)
    wait_for(lambda: "measuring speed alone: 2 of 2" in sweep.out, seconds=240)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    folders = sorted(tmp_path.glob("outputs/shared/*/seed*"))
    assert len(folders) == 4
    assert sorted(speed(folder)["measured"] for folder in folders) == [FIRST, FIRST, BESIDE, BESIDE]

    finished = forked(*shared)
    assert finished.code == 0, finished.err
    assert finished.out.count("measuring speed alone: ") == 1
    assert "sweep of 4 jobs, 2 at once" in finished.out
    records = {}
    for folder in folders:
        found = records[folder] = json.loads((folder / "result.json").read_text())
        other = tmp_path / "outputs" / "one_by_one" / folder.relative_to(tmp_path / "outputs" / "shared")
        assert found["metrics"] == json.loads((other / "result.json").read_text())["metrics"]
        mine, theirs = weights(folder), weights(other)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert found["speed"]["measured"] == FIRST
        assert (found["speed"]["beside"]["exclusive"], found["speed"]["time_to_train_s"]) == (False, None)
        assert "gpu_share" not in found["environment"]["command"], "the run's own command can be repeated"
        assert speed(other).keys().isdisjoint({"measured", "beside"})
    rates = {found["speed"]["train_samples_per_s"] for found in records.values()}
    assert len(rates) == 2, "one per setting"
    assert all(f"│ {rate:,.0f} " in finished.out for rate in rates)

    before = {folder: (folder / "result.json").read_bytes() for folder in folders}
    again = forked(*shared)
    assert again.code == 0, again.err
    assert "measuring" not in again.out
    assert {folder: (folder / "result.json").read_bytes() for folder in folders} == before
    assert len(list(tmp_path.glob("outputs/_sweep/*"))) == 1, "only the killed sweep left its folder"


def speed(folder):
    return json.loads((folder / "result.json").read_text())["speed"]
