"""What is printed while a run trains."""

import re
from types import SimpleNamespace

import torch
from few_steps import FEW_STEPS

from mpx.training.progress import EpochLines, progress

SMALL = ("model=mlp", *FEW_STEPS)


def test_lines_of_a_sparse_run(train):
    ran = train(*SMALL, "sparsity=2of4", "trainer.max_epochs=2")
    speed, first, pruned, second, *_ = ran.out.splitlines()
    assert speed.startswith("speed: ")
    assert re.fullmatch(r"epoch 1/2  loss \d\.\d{4}  val accuracy \d\.\d{4}(  [\d,]+ samples/s)?", first)
    assert re.fullmatch(r"step \d+: 2 of 3 layers pruned to 2of4", pruned)
    assert second.startswith("epoch 2/2  ")


def test_an_epoch_without_a_validation_shows_none(train):
    ran = train(*SMALL, "trainer.max_epochs=4", "trainer.check_val_every_n_epoch=2")
    epochs = [line for line in ran.out.splitlines() if line.startswith("epoch ")]
    assert ["val accuracy" in line for line in epochs] == [False, True, False, True]


def test_figures_have_no_point_at_their_end(capsys):
    lines = EpochLines(SimpleNamespace(samples_per_s=99.97), "val/perplexity")
    trainer = SimpleNamespace(is_global_zero=True, callback_metrics={"val/perplexity": torch.tensor(1236.4)}, current_epoch=0, max_epochs=1)
    lines.on_validation_end(trainer, None)
    lines.on_train_epoch_end(trainer, None)
    assert capsys.readouterr().out == "epoch 1/1  val/perplexity 1236  100 samples/s\n"


def test_a_bar_keeps_the_lines_and_counts_as_they_do(forked):
    ran = forked(*SMALL, "trainer.max_epochs=2", "trainer.progress=bar", env={"FORCE_COLOR": "1"})
    assert ran.code == 0, ran.err
    assert re.search(r"epoch 1/2 .*━", ran.out)
    assert all(f"epoch {epoch}/2  loss " in ran.out for epoch in (1, 2))
    assert "Epoch 0/1" not in ran.out


def test_without_a_terminal_there_are_lines():
    assert [type(part).__name__ for part in progress("auto", None)] == ["EpochLines"]
