"""What last.ckpt and best.ckpt hold, and that a run whose record was lost can still be finished."""

from functools import partial

import pytest
import torch
from few_steps import FEW_STEPS
from omegaconf import OmegaConf
from pytorch_lightning import Trainer
from torchvision.models.resnet import ResNet

from mpx.models import build
from mpx.sparsity.patterns import is_2of4
from mpx.spec import Spec

MLP = ["model=mlp", *FEW_STEPS, "trainer.max_epochs=4"]


def load(folder, name):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def test_last_is_the_last_state_even_when_it_is_not_the_best(train):
    """A learning rate of next to nothing: no epoch after the first improves."""
    ran = train(*MLP, "optimizer.lr=1e-12")
    assert load(ran.folder, "best.ckpt")["global_step"] == 2
    assert load(ran.folder, "last.ckpt")["global_step"] == 8
    assert ran.record["precision"]["optimizer_steps"] == 8


def test_best_stays_the_best_of_a_folder_that_has_moved(train, interrupted, tmp_path):
    """No epoch after the first improves, and a run that continues in another place knows of the first."""
    words = [*MLP, "optimizer.lr=1e-12", "if_exists=resume"]
    for name, run in (("here", partial(interrupted, 5)), ("there", train)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / "outputs").symlink_to(tmp_path / name)
        ran = run(*words)
        (tmp_path / "outputs").unlink()
        if name == "here":
            (tmp_path / "here").rename(tmp_path / "there")
    assert ran.code == 0, ran.err
    (folder,) = (tmp_path / "there" / "default").glob("*/seed0")
    assert load(folder, "best.ckpt")["global_step"] == 2
    assert load(folder, "last.ckpt")["global_step"] == 8


def test_best_is_pruned(train):
    ran = train(*MLP, "sparsity=2of4")
    for name in ("best.ckpt", "last.ckpt"):
        for layer in ran.record["sparsity"]["layers"]:
            if layer["pruned"]:
                assert is_2of4(load(ran.folder, name)["state_dict"][layer["name"]]), name


@pytest.mark.parametrize("sparsity", ["dense", "2of4"])
def test_killed_during_the_test_it_is_finished_by_a_resume(train, sparsity):
    first = train(*MLP, f"sparsity={sparsity}")
    before = first.record
    (first.folder / "result.json").unlink()
    again = train(*MLP, f"sparsity={sparsity}", "if_exists=resume")
    assert again.code == 0, again.err
    assert again.record["status"] == "completed"
    assert again.record["metrics"]["test/loss"] == before["metrics"]["test/loss"]
    assert again.record["sparsity"] == before["sparsity"]


def test_within_an_epoch_only_whole_steps_are_saved(train, monkeypatch):
    saved, really = [], Trainer.save_checkpoint

    def save(trainer, path, *args):
        saved.append((trainer.global_step, str(path)))
        really(trainer, path, *args)

    monkeypatch.setattr(Trainer, "save_checkpoint", save)
    steps = ["trainer.limit_train_batches=10", "trainer.accumulate_grad_batches=3", "trainer.checkpoint_every_n_steps=1"]
    ran = train("model=mlp", *FEW_STEPS, *steps)
    assert ran.code == 0, ran.err
    assert saved == [
        (step, str(ran.folder / "checkpoints" / name))
        for step, name in [(1, "last.ckpt"), (2, "last.ckpt"), (3, "last.ckpt"), (4, "best.ckpt")]
    ]


def test_one_batch_is_not_all_batches(train):
    assert train("model=mlp", *FEW_STEPS, "trainer.limit_train_batches=1").code == 0
    ran = train("model=mlp", *FEW_STEPS, "trainer.limit_train_batches=1.0", "if_exists=skip")
    assert ran.code == 0, ran.err
    assert len(ran.folders) == 2


def test_a_checkpoint_loads_strictly_into_the_plain_model(train):
    ran = train("model=resnet18", "data.batch_size=4", *FEW_STEPS)
    model = build(OmegaConf.create(ran.record["config"]["model"]), Spec("image", (1, 8, 8), 10))
    assert type(model) is ResNet
    model.load_state_dict(load(ran.folder, "last.ckpt")["state_dict"], strict=True)
