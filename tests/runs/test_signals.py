"""Ctrl-C and SIGTERM end a run once."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from processes import Fork, wait_for

from mpx.errors import PIPE_CLOSED
from mpx.measure.throughput import Throughput
from mpx.runs import signals

DISPLACED = """
import ctypes, os, signal
from mpx.training.module import TrainingModule

displace = ctypes.CDLL(None).signal
first, then = os.environ["FIRST"], os.environ["THEN"]

def watched(name):
    step = getattr(TrainingModule, name)

    def watched_step(self, batch, batch_idx):
        if f"{name} {self.current_epoch} {batch_idx}" == first:
            displace(signal.SIGINT, None)  # as a library does, behind Python's back; None is the system's default
        if f"{name} {self.current_epoch} {batch_idx}" == then:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, batch, batch_idx)

    setattr(TrainingModule, name, watched_step)

for name in ("training_step", "validation_step"):
    watched(name)
"""
SHORT = [
    "model=mlp",
    "data.batch_size=8",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=40",
    "trainer.progress=off",
]


@pytest.fixture(autouse=True)
def _as_it_was():
    before = {number: signal.getsignal(number) for number in signals.ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", signals.ENDING)
def test_the_first_is_a_flag_and_the_second_ends(monkeypatch, number):
    """Two within a second count as one, since `timeout` sends two."""
    now = [0.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    signals.begin()
    stop = signals.run
    stop.save_first(True)
    signal.raise_signal(number)
    signal.raise_signal(signal.SIGTERM)
    assert stop.first == number
    now[0] = 1.1
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        signal.raise_signal(signal.SIGTERM)
    now[0] = 2.2
    stop.finish()
    signal.raise_signal(number)  # while the record is written


@pytest.mark.parametrize(
    ("displaced", "sent"),
    [("training_step 0 2", "training_step 0 30"), ("validation_step 0 0", "training_step 1 0")],
)
def test_a_run_hears_ctrl_c_though_a_library_has_displaced_the_handler(tmp_path, displaced, sent):
    ran = Fork(*SHORT, folder=tmp_path, env={"FIRST": displaced, "THEN": sent}, before=DISPLACED)
    assert ran.wait() in (130, -signal.SIGINT)
    assert ran.err == "interrupted; the same command with if_exists=resume continues it\n"
    (result,) = tmp_path.glob("outputs/default/*/seed0/result.json")
    assert json.loads(result.read_text())["status"] == "interrupted"


FEW = [
    "model=mlp",
    "data.batch_size=8",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=6",
    "trainer.progress=off",
]


@pytest.mark.parametrize(
    ("at", "accumulate", "saved"),
    [
        pytest.param((0, 2), 1, 3, id="within an epoch"),
        pytest.param((0, 2), 2, 2, id="while gradients accumulate", marks=pytest.mark.slow),
        pytest.param((0, 5), 1, 6, id="in an epoch's last batch", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_must_go_saves_after_the_present_step(train, monkeypatch, at, accumulate, saved):
    """at: epoch and batch in which the signal comes. saved: the optimizer steps in the checkpoint."""

    def told(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == at:
            signal.raise_signal(signal.SIGUSR1)

    with monkeypatch.context() as patch:
        patch.setattr(Throughput, "on_train_batch_start", told)
        ran = train(*FEW, f"trainer.accumulate_grad_batches={accumulate}")
    assert (ran.code, ran.record["status"]) == (143, "interrupted"), ran.err
    assert torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == saved
    again = train(*FEW, f"trainer.accumulate_grad_batches={accumulate}", "if_exists=resume")
    assert (again.code, again.record["status"]) == (0, "completed"), again.err
    assert again.record["environment"]["resumed_from_steps"] == [saved]


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_interrupts(tmp_path):
    """As with `| head -1`."""
    command = [sys.executable, "-m", "mpx.train", *SHORT, "trainer.max_epochs=9", "trainer.progress=lines"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as run:
        assert run.stdout.readline().startswith("speed: ")
        run.stdout.close()
        assert run.stderr.read() == "interrupted; the same command with if_exists=resume continues it\n"
    assert run.returncode == PIPE_CLOSED
    (result,) = tmp_path.glob("outputs/default/*/seed0/result.json")
    assert json.loads(result.read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_the_loaders_workers_leave_the_end_to_the_run(tmp_path):
    """Slurm sends the signal to all processes of a job."""
    words = [*SHORT, "trainer.max_epochs=10", "data.loader=workers", "data.workers=1"]
    ran = Fork(*words, folder=tmp_path)
    wait_for(lambda: list(tmp_path.glob("outputs/default/*/seed0/checkpoints/last.ckpt")))
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(ran.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(listed) == 2, "one for training, one for validation"
    for pid in map(int, listed):
        for number in signals.TOLD_TO_GO:
            os.kill(pid, number)
    assert ran.wait(timeout=120) == 0, ran.err
