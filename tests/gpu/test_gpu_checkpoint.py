"""On a CUDA device: checkpoints hold the weights as they were when they were saved, and the copies on the host are used again."""

import pytest
import torch
from torch import nn

from mpx.run.checkpoint_writer import CheckpointWriter

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_what_was_saved_whatever_the_device_does_next(tmp_path):
    model, writer = nn.Conv2d(256, 1024, 3).cuda().to(memory_format=torch.channels_last), CheckpointWriter()
    places = []
    for number in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        writer.save_checkpoint({"state_dict": model.state_dict()}, tmp_path / f"{number}.ckpt")
        places.append([place.data_ptr() for place in writer._pinned.values()])
        with torch.no_grad():
            model.weight.fill_(-1)
    writer.wait()
    assert places[0] == places[1] == places[2]
    for number in range(3):
        found = torch.load(tmp_path / f"{number}.ckpt", weights_only=True)["state_dict"]
        assert all(bool((value == number).all()) and value.device.type == "cpu" for value in found.values())
        assert found["weight"].is_contiguous(memory_format=torch.channels_last)


def test_a_run_on_the_device(train):
    ran = train("model=resnet20", "trainer.max_epochs=3", "trainer.limit_train_batches=8", "optimizer=adamw", "precision=amp")
    assert ran.code == 0, ran.err
    last = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 24
    state = last["optimizer_states"][0]["state"]
    assert all(bool(value["exp_avg"].isfinite().all()) and value["exp_avg"].device.type == "cpu" for value in state.values())
