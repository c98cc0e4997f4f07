"""On a CPU images are laid out channels_last where that pays: a run goes on from one in the other layout."""

import json
import shutil

import pytest
import torch

from mpx.runs.checkpoint import WholeFiles

STEPS = [
    "trainer.accelerator=cpu", "trainer.limit_train_batches=1", "trainer.max_epochs=2", "trainer.progress=off",
    "optimizer.lr=0.001", "data.eval_batch_size=4", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1",
]  # fmt: skip


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where the checkpoint of the first of the two steps is kept, before the second one's takes its place."""
    path, save = tmp_path / "first.ckpt", WholeFiles.save_checkpoint

    def keep(self, checkpoint, to, storage_options=None):
        save(self, checkpoint, to, storage_options)
        if checkpoint["global_step"] == 1:
            shutil.copy(to, path)

    monkeypatch.setattr(WholeFiles, "save_checkpoint", keep)
    return path


def weights(path):
    return torch.load(path, weights_only=True)["state_dict"]


def filters(state):
    return torch.cat([value.double().flatten() for value in state.values() if value.dim() == 4])


def test_layouts_continue_each_other(train, kept, tmp_path):
    """One step in the same layout and one in either. In more steps rounding errors grow: a ReLU opens here
    and not there.
    """

    def run(study, *overrides):
        ran = train(*STEPS, "optimizer=sgd", f"study={study}", *overrides)
        assert ran.code == 0, ran.err
        (folder,) = (ran.outputs / study).glob("*/seed0")
        chosen = json.loads((folder / "result.json").read_text())["speed"]["chosen"]["channels_last"]
        return weights(folder / "checkpoints" / "last.ckpt"), chosen

    plain = run("plain", "speed=plain")
    after_one = weights(contiguous := kept.rename(tmp_path / "contiguous.ckpt"))
    auto = run("auto")
    laid_out = kept.rename(tmp_path / "channels_last.ckpt")
    on = run("on", f"ckpt_path={contiguous}")
    back = run("back", "speed=plain", f"ckpt_path={laid_out}")
    assert [chosen for _, chosen in (plain, auto, on, back)] == [False, True, True, False]
    found = [
        state["layer3.1.conv1.weight"].is_contiguous(memory_format=torch.channels_last)
        for state, _ in (plain, auto, on, back)
    ]
    assert found == [False, True, True, False]
    moved = (filters(plain[0]) - filters(after_one)).norm()
    for one, other in ((plain, on), (auto, back)):
        assert (filters(one[0]) - filters(other[0])).norm() < 0.05 * moved
