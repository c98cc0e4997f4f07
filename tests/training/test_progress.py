"""What is printed while a run trains."""

import re

from few_steps import FEW_STEPS

from mpx.training.callbacks import progress

SMALL = ("model=mlp", *FEW_STEPS)


def test_lines_of_a_sparse_run(train):
    ran = train(*SMALL, "sparsity=2of4", "trainer.max_epochs=2")
    speed, _data, first, pruned, second, *_ = ran.out.splitlines()
    assert speed.startswith("speed: ")
    assert re.fullmatch(r"epoch 1/2  loss \d\.\d{4}  val accuracy \d\.\d{4}(  [\d,]+ samples/s)?", first)
    assert re.fullmatch(r"step \d+: 2 of 3 layers pruned to 2of4", pruned)
    assert second.startswith("epoch 2/2  ")


def test_a_bar_keeps_the_lines_and_counts_as_they_do(forked):
    ran = forked(*SMALL, "trainer.max_epochs=2", "trainer.progress=bar", env={"FORCE_COLOR": "1"})
    assert ran.code == 0, ran.err
    assert re.search(r"epoch 1/2 .*━", ran.out)
    assert all(f"epoch {epoch}/2  loss " in ran.out for epoch in (1, 2))
    assert "Epoch 0/1" not in ran.out


def test_a_long_epoch_has_lines_of_its_own(train, monkeypatch):
    monkeypatch.setattr("mpx.training.callbacks.SILENT_S", 0.0)
    out = train(*SMALL, "trainer.progress=lines").out
    for batch in (1, 2):
        assert re.search(rf"^epoch 1/1  batch {batch}/2  loss \d\.\d{{4}}$", out, re.MULTILINE)


def test_without_a_terminal_there_are_lines():
    assert [type(part).__name__ for part in progress("auto", None)] == ["EpochLines"]
