"""What last.ckpt and best.ckpt hold, when they are saved, and what happens to damaged ones."""

import json

import pytest
import torch
from few_steps import FEW_STEPS
from made_data import text_file
from omegaconf import OmegaConf
from pytorch_lightning import Trainer
from torchvision.models.resnet import ResNet

from mpx.data.spec import Spec
from mpx.models import build
from mpx.sparsity.patterns import is_2of4

MLP = ["model=mlp", *FEW_STEPS, "trainer.max_epochs=4", "trainer.save_every_s=0"]


def load(folder, name):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def test_last_is_the_last_state_even_when_it_is_not_the_best(train):
    """A learning rate of next to nothing: no epoch after the first improves."""
    ran = train(*MLP, "optimizer.lr=1e-12")
    assert load(ran.folder, "best.ckpt")["global_step"] == 2
    assert load(ran.folder, "last.ckpt")["global_step"] == 8
    assert ran.record["precision"]["optimizer_steps"] == 8


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


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["trainer.save_every_s=0"], [1, 2, 3]),
        (["trainer.save_every_s=1000"], [1, 3]),  # the first is the best, too
        (["trainer.checkpoint_every_n_steps=1", "trainer.limit_train_batches=6"], [1, 2, 3, 4, 5, 6]),
        (["trainer.save_every_s=1000", "trainer.limit_train_batches=6", "trainer.max_steps=3"], [2, 3]),
    ],
)
def test_last_is_saved_after_whole_steps(train, monkeypatch, words, steps):
    saved, really = [], Trainer.save_checkpoint

    def save(trainer, path, *args):
        saved.append(trainer.global_step)
        really(trainer, path, *args)

    monkeypatch.setattr(Trainer, "save_checkpoint", save)
    lengths = [
        "trainer.max_epochs=3",
        "trainer.limit_train_batches=3",
        "trainer.accumulate_grad_batches=3",
        "optimizer.lr=1e-12",
    ]
    ran = train("model=mlp", *FEW_STEPS, *lengths, *words)
    assert ran.code == 0, ran.err
    assert saved == steps


def test_a_checkpoint_loads_strictly_into_the_plain_model(train):
    ran = train("model=resnet18", "data.batch_size=4", *FEW_STEPS)
    model = build(OmegaConf.create(ran.record["config"]["model"]), Spec("image", (1, 8, 8), 10))
    assert type(model) is ResNet
    model.load_state_dict(load(ran.folder, "last.ckpt")["state_dict"], strict=True)


@pytest.fixture
def cut(interrupted):
    """A run of four epochs that was interrupted in the last one, and whose first epoch was its best; its
    folder.
    """
    return interrupted(6, *MLP, "optimizer.lr=1e-12").folder


def flip(file):
    """As a disk does."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_refused(train, cut):
    last = cut / "checkpoints" / "last.ckpt"
    flip(last)
    ran = train(*MLP, "optimizer.lr=1e-12", "if_exists=resume")
    assert ran.code == 2
    assert ran.err.startswith(f"error: {last} is damaged (")
    assert ran.record["status"] == "interrupted"
    best = last.with_name("best.ckpt")
    assert f"'ckpt_path=\"{best}\"'" in ran.err
    again = train(*MLP, "optimizer.lr=1e-12", "study=again", f"ckpt_path={best}")
    assert again.code == 0, again.err


def test_a_checkpoint_with_lightnings_best_continues(train, interrupted):
    """As mpx wrote them before: the best epoch stands in the state of Lightning's ModelCheckpoint."""
    words = [*MLP, "optimizer.lr=1e-12"]
    folder = interrupted(6, *words).folder
    checkpoint = load(folder, "last.ckpt")
    best = torch.tensor(checkpoint.pop("best"))
    checkpoint["callbacks"]["Best{'monitor': 'val/accuracy', 'mode': 'max'}"] = {"best_model_score": best}
    torch.save(checkpoint, folder / "checkpoints" / "last.ckpt")
    ran = train(*words, "if_exists=resume")
    assert ran.code == 0, ran.err
    assert load(folder, "best.ckpt")["global_step"] == 2


def test_data_that_changed_since_the_run_was_cut_off(train, interrupted, tmp_path):
    file = tmp_path / "text.txt"
    text_file(file)
    words = [
        "model=lstm",
        "data=text_file",
        f"data.path={file}",
        "data.seq_len=32",
        "data.batch_size=8",
        *FEW_STEPS,
    ]
    words += [
        "model.hidden_size=16",
        "model.embedding_size=16",
        "trainer.max_epochs=3",
        "trainer.save_every_s=0",
    ]
    interrupted(5, *words)
    before = file.read_text()
    file.write_text(before[:100] + before[100:].replace("that is", "this is", 1))
    ran = train(*words, "if_exists=resume")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    last = ran.folder / "checkpoints" / "last.ckpt"
    assert ran.err.startswith(
        f"error: the train data are no longer those that {last} was trained on. Put the old files back, start"
    )
    assert f"'ckpt_path=\"{last}\"'" in ran.err
    again = train(*words, "study=again", f"ckpt_path={last}")
    assert again.code == 0, again.err
    (file,) = again.outputs.glob("again/*/seed0/result.json")
    assert json.loads(file.read_text())["environment"]["resumed_from_steps"] == [4]
