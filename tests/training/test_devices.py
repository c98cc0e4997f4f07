"""Two processes on one CPU machine train as one."""

import json
import signal

import pytest
import torch
from omegaconf import OmegaConf
from processes import Fork, wait_for
from refused import assert_refused

from mpx.compare.collect import read_predictions
from mpx.errors import UserError
from mpx.render.curves import read_curves
from mpx.training import trainer
from mpx.training.optimizer import check_limits
from mpx.training.trainer import Devices

SHORT = [
    "trainer.accelerator=cpu",
    "model=mlp",
    "trainer.max_epochs=2",
    "trainer.progress=lines",
    "trainer.warmup_steps=2",
]


@pytest.mark.slow
def test_two_ddp_processes(forked):
    """Each process checks the masks of its own model when a checkpoint is saved."""
    pruned = ["precision=amp", "sparsity=2of4"]
    ran = forked(*SHORT, "trainer.devices=2", "data.batch_size=32", *pruned)
    assert ran.code == 0, ran.err
    record = ran.record
    assert record["status"] == "completed"
    assert record["sparsity"]["verified"] is True
    assert record["precision"]["optimizer_steps"] + record["precision"]["skipped_steps"] == 2 * (
        1297 // 2 // 32
    )
    speed = record["speed"]
    seconds = speed["time_to_train_parts_s"]["steps"]  # of the timed windows, and a little more
    samples = speed["measured_steps"] * 64  # of both
    assert 0.99 * samples < speed["train_samples_per_s"] * seconds < 1.9 * samples
    # every sample counted once
    assert record["metrics"]["test/accuracy"] * 360 == round(record["metrics"]["test/accuracy"] * 360)
    kept, aside = read_predictions(ran.folder, record)  # which must agree with the accuracy
    assert (kept.samples, aside) == (360, [])
    assert ran.out.count("epoch 1/2") == 1
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_two_processes_compute_the_gradients_of_one(forked):
    """Without augmentation, one full-batch step on 2 × 600 samples moves the weights as one on the same 1,200
    would, up to rounding.
    """
    one_step = [*SHORT, "trainer.max_steps=1", "data.augment=none", "schedule.warmup=0.0", "optimizer=sgd"]
    one_step += ["numerics.every=1", "numerics.histogram=true"]
    two = forked(*one_step, "study=two", "trainer.devices=2", "data.batch_size=600")
    one = forked(*one_step, "study=one", "data.batch_size=1200")
    assert (two.code, one.code) == (0, 0), two.err + one.err
    assert "Traceback" not in two.err
    saved = [
        torch.load(next((one.outputs / study).glob("*/seed0/checkpoints/last.ckpt")), weights_only=True)
        for study in ("one", "two")
    ]
    states, numerics = (
        [part["state_dict"] for part in saved],
        [part["callbacks"]["Numerics"] for part in saved],
    )
    right = [
        json.loads(next(two.outputs.glob(f"{study}/*/seed0/predictions.json")).read_text())
        for study in ("one", "two")
    ]
    assert right[0] == right[1]  # in the order of the test set, however many processes test it
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], atol=1e-6), name
    losses = [
        read_curves(next(two.outputs.glob(f"{study}/*/seed0")))["train/loss"] for study in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # of all processes, not of the first
    outputs = [sum(counts.sum() for counts in part["layers"].values()) for part in numerics]
    assert outputs[0] == outputs[1] == 1200 * (128 + 128 + 10)  # gradients of all processes, not of the first
    for name, counts in numerics[0]["layers"].items():  # each process divides its loss by half of the samples
        shifted = numerics[1]["layers"][name].roll(-1)[1:-2]
        assert (counts[1:-2] - shifted).abs().sum() <= counts.sum() / 1000, name
    weights = sum(value.numel() for name, value in states[0].items() if name.endswith("weight"))
    # of the layers' inputs and weights; each process has gradients of all weights
    nonzero = [part["totals"][0] for part in numerics]
    assert nonzero[1] - nonzero[0] == pytest.approx(weights, rel=0.1)  # some are 0


TAGGED = """
import torch

def make():
    x = torch.randint(1, 50, (48, 12), generator=torch.Generator().manual_seed(0))
    labelled = torch.arange(12) < torch.arange(48)[:, None] % 12  # of some sentences no word
    y = torch.where(labelled, x % 5, -100)
    return (x, y), (x[:24], y[:24]), (x[24:], y[24:])
"""


@pytest.mark.slow
def test_each_label_counts_alike_however_many_processes(forked, tmp_path):
    """The parts of a batch have different numbers of labels."""
    (tmp_path / "tagged.py").write_text(TAGGED)
    words = [
        "data=custom",
        "data.kind=text",
        "data.task=tokens",
        "data._target_=tagged.make",
        "model=lstm",
        "model.dropout=0.0",
    ]
    words += [
        SHORT[0],
        *SHORT[2:],
        "optimizer=sgd",
        "optimizer.lr=0.5",
        "schedule=constant",
    ]
    one = forked(*words, "study=one", "data.batch_size=8")
    two = forked(*words, "study=two", "data.batch_size=4", "trainer.devices=2")
    assert (one.code, two.code) == (0, 0), one.err + two.err
    found = [next((two.outputs / study).glob("*/seed0")) for study in ("one", "two")]
    states = [
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for folder in found
    ]
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], atol=1e-6), name
    losses = [read_curves(folder)["train/loss"] for folder in found]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_what_ends_both_processes_is_said_once(forked):
    ran = forked(*SHORT, "trainer.devices=2", "optimizer.lr=1e20")
    assert (ran.code, ran.record["status"]) == (3, "diverged")
    assert ran.err.count("the loss became infinite or NaN") == 1
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_two_processes_that_must_go_save_the_same_step(forked, tmp_path):
    """The signal reaches only the first of them. They save within a second or so, long before the end of an
    epoch.
    """
    words = [
        *SHORT[:2],
        "trainer.devices=2",
        "trainer.max_epochs=2",
        "data.batch_size=1",
        "sparsity=2of4",
        "trainer.log_every_n_steps=9999",
    ]
    run = Fork(*words, folder=tmp_path)
    wait_for(lambda: list(tmp_path.glob("outputs/*/*/seed0/checkpoints/last.ckpt")))
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert run.err == "interrupted; the same command with if_exists=resume continues it\n"
    again = forked(*words, "if_exists=resume")
    assert again.code == 0, again.err
    (step,) = again.record["environment"]["resumed_from_steps"]
    in_epoch = 1297 // 2
    assert in_epoch <= step < 2 * in_epoch
    assert again.record["sparsity"]["verified"] is True


@pytest.mark.slow
def test_what_two_devices_cannot_train_is_said_once(command):
    line = (
        "data.batch_size=1000 on 2 devices needs 2000 train samples but there are 1297: lower data.batch_size"
    )
    assert_refused(command(*SHORT, "data.batch_size=1000", "trainer.devices=2"), f"error: {line}")


def test_each_device_needs_a_sample_of_the_test():
    settings = OmegaConf.create({"limit_val_batches": 1.0, "limit_test_batches": 1.0})
    check_limits(settings, 256, {"val": 8, "test": 2}, devices=2)
    line = "trainer.devices: 2 devices need a test sample each, and there are 1"
    with pytest.raises(UserError, match=line):
        check_limits(settings, 256, {"val": 8, "test": 1}, devices=2)


def test_the_gpus_that_are_named_are_used(monkeypatch):
    monkeypatch.setattr(trainer, "usable_gpus", lambda key, accelerator: 4)
    settings = {"accelerator": "auto", "num_nodes": 1, "devices": [2]}
    assert trainer.choose_devices(OmegaConf.create(settings)) == Devices(torch.device("cuda", 2), 1)
    assert trainer.choose_devices(OmegaConf.create(settings | {"devices": "auto"})).count == 4
    with pytest.raises(UserError, match="this machine has 4 GPUs"):
        trainer.choose_devices(OmegaConf.create(settings | {"devices": [4]}))
