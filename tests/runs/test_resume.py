"""A run that is cut off and continued ends with the weights, masks and averages of the run that was not, bit
for bit.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import Fork, alive, wait_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

MLP = [
    "model=mlp", "model.widths=[32,32]", "model.dropout=0.2", "data.batch_size=32", "trainer.max_epochs=3",
    "trainer.limit_train_batches=8",
    "trainer.warmup_steps=0", "trainer.checkpoint_every_n_steps=3", "trainer.accelerator=cpu",
    "trainer.progress=off", "sparsity=2of4",
]  # fmt: skip
CUTS = (7, 13, 20)  # of 24 steps; the checkpoint before each is of a multiple of 3
EMA = "trainer.ema_decay=0.9"
CASES = {
    "asp": ["precision=o2", EMA],
    "one_shot": ["precision=bf16_true", "sparsity.recipe=one_shot", EMA],
    "from_start": ["precision=fp8", "precision.layers=all", "sparsity.recipe=from_start", EMA],
    "gradual": [
        "precision=fp16_true",
        "sparsity.recipe=gradual",
        "sparsity.start=0.2",
        "sparsity.end=0.8",
        "optimizer=sgd",
        EMA,
    ],
    "sr_ste, sgd": [
        "precision=amp",
        "sparsity.recipe=sr_ste",
        "sparsity.start=0.2",
        "optimizer=sgd",
        "optimizer.lr=0.1",
    ],
    "sr_ste, adamw": ["precision=amp", "sparsity.recipe=sr_ste", "sparsity.start=0.2", EMA],
}
BY_DEFAULT = ("asp", "sr_ste, sgd")
STORED = {"fp16_true": torch.float16, "bf16_true": torch.bfloat16}  # others keep FP32


def last(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def only(outputs, study):
    (folder,) = (outputs / study).glob("*/seed*")
    return folder


def assert_same(one, other):
    """Of two checkpoints."""
    assert one["global_step"] == other["global_step"]
    assert one["schedule"] == other["schedule"]
    assert one["ModePrecision"] == other["ModePrecision"]
    same_tensors(one["state_dict"], other["state_dict"])
    ours, theirs = (checkpoint["callbacks"]["Pruning"] for checkpoint in (one, other))
    for part in ("masks", "stash"):
        same_tensors(ours[part], theirs[part])
    same_tensors(ours["recipe"].get("variances", {}), theirs["recipe"].get("variances", {}))
    assert ours["kept"] == theirs["kept"]
    averages = [checkpoint["callbacks"].get("Ema", {}).get("averages", {}) for checkpoint in (one, other)]
    same_tensors(*averages)
    assert all(value.dtype == torch.float32 for value in averages[0].values())


def same_tensors(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if name in BY_DEFAULT else pytest.mark.slow, id=name)
        for name, case in CASES.items()
    ],
)
def test_a_run_cut_off_three_times(train, interrupted, tmp_path, case):
    """Twice continued with if_exists=resume, the third time with ckpt_path in another study."""
    uncut = train(*MLP, *case, "study=uncut")
    assert uncut.code == 0, uncut.err
    for step in CUTS:
        interrupted(step, *MLP, *case, "study=cut", "if_exists=resume")
        # Lightning ignores it until its teardown
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    file = shutil.copy(only(uncut.outputs, "cut") / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt")
    assert torch.load(file, weights_only=True)["global_step"] == 18
    continued = train(*MLP, *case, "study=continued", f"ckpt_path={file}")
    assert continued.code == 0, continued.err
    found = last(only(uncut.outputs, "uncut"))
    assert_same(last(only(uncut.outputs, "continued")), found)
    stored = STORED.get(case[0].removeprefix("precision="), torch.float32)
    assert {value.dtype for value in found["state_dict"].values()} == {stored}


@pytest.mark.parametrize("words", [[], ["trainer.max_epochs=1"], ["trainer.max_steps=10"], ["precision=amp"]])
def test_a_checkpoint_that_leaves_no_step_is_refused(train, finished, words):
    """The record would give its accuracy to another setting, or to a shorter run."""
    before, file = finished
    ran = train(*before, *words, f"ckpt_path={file}", "study=another")
    assert ran.code == 2, ran.out
    assert ran.err.startswith(
        f"error: ckpt_path={file} has trained for 16 steps, which leaves this run none."
    )
    assert ran.err.count("\n") == 1
    assert not (ran.outputs / "another").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The words of a run, and its last.ckpt outside its folder."""
    words, folder = [*MLP, "sparsity=dense", "trainer.max_epochs=2"], tmp_path_factory.mktemp("finished")
    assert Fork(*words, folder=folder).wait() == 0
    (file,) = folder.glob("outputs/*/*/seed0/checkpoints/last.ckpt")
    return words, shutil.copy(file, folder / "last.ckpt")


LONG = [*MLP, "trainer.progress=lines", "precision=amp", EMA]


@pytest.mark.slow
# two ranks take long to start
@pytest.mark.parametrize(("devices", "kills", "epochs"), [(1, 8, 24), (2, 3, 18)])
def test_killed_many_times_at_random(tmp_path, devices, kills, epochs):
    """Weights, masks, averages, loss scale, metrics and curves are those of the run that was never killed; no
    step is there twice.

    Of two ranks any is killed.
    """
    # a part that is not killed at once trains about three
    setting = [*LONG, f"trainer.devices={devices}", f"trainer.max_epochs={epochs}"]
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    for folder in (uncut, cut):
        folder.mkdir()
    assert Fork(*setting, folder=uncut).wait() == 0
    chance = random.Random(20)
    for number in range(kills):
        run = Fork(*setting, "if_exists=resume", folder=cut)
        if number % 2 or devices > 1:  # the others are mostly killed before the first step
            wanted = chance.randint(2, 3)  # so that there is a new checkpoint, however slow the machine is
            wait_for(
                lambda run=run, wanted=wanted: run.out.count("epoch ") >= wanted or run.poll() is not None
            )
        time.sleep(chance.uniform(0, 0.1))
        kill_and_wait(run, chance)
    final = Fork(*setting, "if_exists=resume", folder=cut)
    assert final.wait() == 0, final.err
    ours, theirs = (only(folder / "outputs", "default") for folder in (cut, uncut))
    assert len(json.loads((ours / "result.json").read_text())["environment"]["resumed_from_steps"]) >= 3
    assert_same(last(ours), last(theirs))
    one, other = (json.loads((folder / "result.json").read_text())["metrics"] for folder in (ours, theirs))
    assert one == other
    assert curves(ours) == curves(theirs)
    assert events(ours) == events(theirs)


def kill_and_wait(run, chance):
    """Kill one of the run's processes, and wait for the others."""
    ranks = [run.pid, *map(int, Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())]
    killed = chance.choice(ranks)
    os.kill(killed, signal.SIGKILL)
    assert run.wait() == (-signal.SIGKILL if killed == run.pid else 1), run.err
    wait_for(lambda: not any(map(alive, ranks)), seconds=60)


TIMELESS = ("train/", "val/", "numerics/", "sparsity/")  # what does not depend on time


def curves(folder):
    return sorted(
        line for line in (folder / "curves.csv").read_text().splitlines() if line.startswith(TIMELESS)
    )


def events(folder):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in found.Tags()["scalars"] if tag.startswith(TIMELESS)]
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags}


SHORT = [
    "model=lstm",
    "model.dropout=0.2",
    "trainer.max_epochs=4",
    "trainer.limit_train_batches=6",
    "trainer.progress=lines",
]
SETTING = [*SHORT, "trainer.save_every_s=0", "precision=amp", "sparsity=2of4", "trainer.accelerator=cpu"]


def stop_after(run, line, stop):
    """Send `stop` when the output holds `line`; the exit code."""
    wait_for(lambda: f"\n{line}" in run.out or run.poll() is not None)
    run.send_signal(stop)
    return run.wait()


@pytest.fixture
def start(tmp_path):
    """start(*overrides) -> the run, in a process of its own."""
    return lambda *overrides: Fork(*SETTING, *overrides, folder=tmp_path)


@pytest.fixture
def finish(start, tmp_path, uncut):
    """finish(*overrides): continue the run in tmp_path; its weights and masks must be those of the uncut one.
    Returns its record.
    """

    def run(*overrides):
        resumed = start(*overrides, "if_exists=resume")
        assert resumed.wait() == 0, resumed.err
        folder = only(tmp_path / "outputs", "default")
        assert_same(last(folder), last(uncut))
        return json.loads((folder / "result.json").read_text())

    return run


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The same run, never cut off."""
    path = tmp_path_factory.mktemp("uncut")
    run = Fork(*SETTING, folder=path)
    assert run.wait() == 0, run.err
    return only(path / "outputs", "default")


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_leaves_a_record_and_resumes(start, finish, tmp_path, stop, code):
    run = start()
    assert stop_after(run, "epoch 1/4", stop) == code
    assert run.err == "interrupted; the same command with if_exists=resume continues it\n"
    record = json.loads((only(tmp_path / "outputs", "default") / "result.json").read_text())
    assert record["status"] == "interrupted"
    assert record["speed"]["measured_steps"] >= 0
    assert "val/accuracy" in record["metrics"]
    finish()


@pytest.mark.slow
def test_interrupt_before_training_begins(tmp_path):
    """Ctrl-C while torch is still being imported, by a fresh process."""
    run = subprocess.Popen(
        [sys.executable, "-m", "mpx.train", *SETTING], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: list(tmp_path.glob("outputs/*/*/seed0")))
    time.sleep(0.3)  # the folder is made before the first lines that can tell of the interruption
    run.send_signal(signal.SIGINT)
    _out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert err == "interrupted before training began; nothing was changed\n"
    assert os.listdir(tmp_path) == []
