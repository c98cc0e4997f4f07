"""On a CUDA device: what a run saves, and that Ctrl-C loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import wait_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_run_on_the_device(train):
    ran = train(
        "model=resnet20",
        "trainer.max_epochs=3",
        "trainer.limit_train_batches=8",
        "optimizer=adamw",
        "precision=amp",
    )
    assert ran.code == 0, ran.err
    last = torch.load(ran.folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    assert last["global_step"] == 24
    state = last["optimizer_states"][0]["state"]
    assert all(bool(value["exp_avg"].isfinite().all()) for value in state.values())


@pytest.mark.parametrize("pauses", [[], [0.3, 0.3], [0.0]], ids=["once", "three times", "twice at once"])
@pytest.mark.parametrize("model", ["resnet20", "lstm"])
def test_ctrl_c_amid_replayed_steps(tmp_path, model, pauses):
    """The record is written however often it comes, also where a compiler has put its own handler before
    Python's.
    """
    setting = [
        f"model={model}",
        "trainer.max_epochs=400",
        "trainer.cuda_graphs=true",
        "precision=amp",
        "trainer.progress=off",
    ]
    # a crash in the driver's or PyTorch's own code says where
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-m", "mpx.train", *setting]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: list(tmp_path.glob("outputs/default/*/seed0/checkpoints/last.ckpt")))
    process.send_signal(signal.SIGINT)
    for pause in pauses:
        time.sleep(pause)
        process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert err == "interrupted; the same command with if_exists=resume continues it\n"
    assert process.returncode in (130, -2)  # of the signal itself where one met the interpreter's own end
    (result,) = tmp_path.glob("outputs/default/*/seed0/result.json")
    assert json.loads(result.read_text())["status"] == "interrupted"
