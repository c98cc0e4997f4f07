"""A run that is cut off and resumed ends with the weights of the run that was not, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import wait_for

SHORT = ["model=lstm", "model.dropout=0.2", "trainer.max_epochs=4", "trainer.limit_train_batches=6", "trainer.progress=lines"]
SETTING = [*SHORT, "precision=amp", "sparsity=2of4", "trainer.accelerator=cpu"]


def weights(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_weights(one, other):
    one, other = weights(one), weights(other)
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def start(tmp_path, *overrides):
    return subprocess.Popen(
        [sys.executable, "-m", "mpx.train", *overrides], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def stop_after(process, line, stop):
    """Send `stop` when the output holds `line`; return all of it."""
    seen = []
    for printed in process.stdout:
        seen.append(printed)
        if printed.startswith(line):
            process.send_signal(stop)
            break
    out, err = process.communicate(timeout=60)
    return "".join(seen) + out, err


def only(tmp_path, study):
    (folder,) = (tmp_path / "outputs" / study).glob("*/seed*")
    return folder


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The same run, never cut off."""
    path = tmp_path_factory.mktemp("uncut")
    process = start(path, *SETTING, "study=uncut")
    _out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return only(path, "uncut")


@pytest.mark.parametrize("epochs", [2, 4], ids=["before the pruning", "after the pruning"])
def test_killed_at_an_epochs_end(tmp_path, uncut, epochs):
    """The line of an epoch comes just before its checkpoint, so the last one on the disk is of the epoch before, or of this one."""
    stop_after(start(tmp_path, *SETTING), f"epoch {epochs}/4", signal.SIGKILL)
    folder = only(tmp_path, "default")
    assert not (folder / "result.json").exists()
    resumed = start(tmp_path, *SETTING, "if_exists=resume")
    _out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    assert_same_weights(folder, uncut)
    record = json.loads((folder / "result.json").read_text())
    assert record["environment"]["resumed_from_steps"] in ([6 * (epochs - 1)], [6 * epochs])
    assert record["sparsity"]["verified"] is True
    masks = [torch.load(f / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"]["Pruning"]["masks"] for f in (folder, uncut)]
    assert masks[0].keys() == masks[1].keys()
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_killed_within_an_epoch(tmp_path, uncut):
    """With a checkpoint inside the epoch, at step 2 of every 6."""
    every = "trainer.checkpoint_every_n_steps=4"
    process = start(tmp_path, *SETTING, every)
    last = None
    while last is None or torch.load(last, weights_only=True)["global_step"] % 6 == 0:
        time.sleep(0.02)
        found = list((tmp_path / "outputs" / "default").glob("*/seed0/checkpoints/last.ckpt"))
        last = found[0] if found else None
        assert process.poll() is None, "the run ended before a checkpoint within an epoch was seen"
    process.kill()
    process.communicate()
    resumed = start(tmp_path, *SETTING, every, "if_exists=resume")
    _out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    assert_same_weights(only(tmp_path, "default"), uncut)


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_leaves_a_record_and_resumes(tmp_path, uncut, stop, code):
    process = start(tmp_path, *SETTING)
    _, err = stop_after(process, "epoch 2/4", stop)
    assert process.returncode == code
    assert "Traceback" not in err
    assert "interrupted; the same command with if_exists=resume continues it" in err
    folder = only(tmp_path, "default")
    record = json.loads((folder / "result.json").read_text())
    assert record["status"] == "interrupted"
    assert record["speed"]["measured_steps"] >= 0
    assert "val/accuracy" in record["metrics"]
    resumed = start(tmp_path, *SETTING, "if_exists=resume")
    _out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    assert_same_weights(folder, uncut)


@pytest.mark.parametrize(("stop", "codes"), [(signal.SIGINT, (130, -2)), (signal.SIGTERM, (143, -15))])
def test_impatience_loses_nothing(tmp_path, stop, codes):
    """Ctrl-C held down: what comes while the run writes its record changes nothing."""
    process = start(tmp_path, *SETTING, "trainer.max_epochs=100")
    wait_for(lambda: list(tmp_path.glob("outputs/default/*/seed0/checkpoints/last.ckpt")))
    while process.poll() is None:
        process.send_signal(stop)
        time.sleep(0.002)
    _out, err = process.communicate()
    assert process.returncode in codes  # of the signal itself where one met the interpreter's own end
    assert err == "interrupted; the same command with if_exists=resume continues it\n"
    assert json.loads((only(tmp_path, "default") / "result.json").read_text())["status"] == "interrupted"


def test_same_command_same_weights(tmp_path, uncut):
    process = start(tmp_path, *SETTING)
    process.communicate(timeout=120)
    assert_same_weights(only(tmp_path, "default"), uncut)


def test_interrupt_before_training_begins(tmp_path):
    """Ctrl-C while torch is still being imported."""
    process = start(tmp_path, *SETTING)
    while not list(tmp_path.glob("outputs/*/*/seed0")):
        time.sleep(0.01)
    time.sleep(0.3)  # the folder is made before the first lines that can tell of the interruption
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "interrupted before training began; nothing was changed\n"
    assert os.listdir(tmp_path) == []
