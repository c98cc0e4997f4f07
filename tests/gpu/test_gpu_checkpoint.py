"""On a CUDA device: checkpoints hold the weights as they were when they were saved. Saving does not wait for the device."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from processes import wait_for
from torch import nn

from mpx.runs import checkpoint_writer
from mpx.runs.checkpoint_writer import CheckpointWriter, _on_host

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_what_was_saved_whatever_the_device_does_next(tmp_path):
    model, writer = nn.Conv2d(256, 1024, 3).cuda().to(memory_format=torch.channels_last), CheckpointWriter()
    for number in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        writer.save_checkpoint({"state_dict": model.state_dict()}, tmp_path / f"{number}.ckpt")
        with torch.no_grad():
            model.weight.fill_(-1)
    writer.wait()
    assert all(value.is_pinned() for value in _on_host(model.state_dict()).values())
    for number in range(3):
        found = torch.load(tmp_path / f"{number}.ckpt", weights_only=True)["state_dict"]
        assert all(bool((value == number).all()) and value.device.type == "cpu" for value in found.values())
        assert found["weight"].is_contiguous(memory_format=torch.channels_last)


def test_a_checkpoint_that_is_written_while_a_step_is_recorded(tmp_path, monkeypatch):
    """The thread frees its pinned copies within the recording, on whose stream training runs, as with several devices."""
    monkeypatch.setattr(checkpoint_writer, "HEAD_START", 60)
    writer, state = CheckpointWriter(), torch.ones(3001, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        writer.save_checkpoint({"state_dict": {"weight": state}}, tmp_path / "last.ckpt")
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            state.mul_(2)
            writer.wait()
            time.sleep(0.2)  # the thread drops what it wrote a moment after it has said that it is done
        torch.empty(3001, pin_memory=True)
    assert bool((torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]["weight"] == 1).all())


def test_no_stream_of_a_recording_is_a_checkpoints(tmp_path):
    """Also in a process of many runs, which has used all streams that PyTorch has."""
    writers, state = [CheckpointWriter() for _ in range(40)], torch.ones(8, device="cuda")
    for number, writer in enumerate(writers):
        writer.save_checkpoint({"state_dict": {"weight": state}}, tmp_path / f"{number}.ckpt")
        writer.wait()
    steps = {torch.cuda.Stream().cuda_stream for _ in range(64)}
    assert len(steps) == 32
    assert not steps & {writer._stream.cuda_stream for writer in writers}


def test_a_run_on_the_device(train):
    ran = train("model=resnet20", "trainer.max_epochs=3", "trainer.limit_train_batches=8", "optimizer=adamw", "precision=amp")
    assert ran.code == 0, ran.err
    last = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 24
    state = last["optimizer_states"][0]["state"]
    assert all(bool(value["exp_avg"].isfinite().all()) and value["exp_avg"].device.type == "cpu" for value in state.values())


@pytest.mark.parametrize("pauses", [[], [0.3, 0.3], [0.0]], ids=["once", "three times", "twice at once"])
@pytest.mark.parametrize("model", ["resnet20", "lstm"])
def test_ctrl_c_amid_replayed_steps(tmp_path, model, pauses):
    """The record is written however often it comes, also where a compiler has put its own handler before Python's."""
    setting = [f"model={model}", "trainer.max_epochs=400", "trainer.cuda_graphs=true", "precision=amp", "trainer.progress=off"]
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}  # a crash in the driver's or PyTorch's own code says where
    command = [sys.executable, "-m", "mpx.train", *setting]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
