"""mpx.Record in an ordinary Trainer: its metric, its record, and runs that go on, diverge, fail or are told
to stop.
"""

import signal

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from own_module import Module, fit, loader, record_of
from pytorch_lightning.callbacks import EarlyStopping
from silent import silent_trainer
from torch.utils.data import DataLoader

import mpx
from mpx.compare.collect import collect
from mpx.errors import UserError

# Lightning's hints about workers, loggers and the machine are not the subject here
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_misspelt_metric_is_refused_before_anything_is_written(tmp_path):
    module = Module()
    with pytest.raises(
        UserError,
        match=r"metric=val_lss: the module logs no such value. Did you mean "
        r"val_loss\? It logs val_loss",
    ):
        fit(mpx.Record(metric="val_lss", output_dir=tmp_path), module=module)
    assert (module.rates, list(tmp_path.iterdir())) == ([], [])


def test_record_alone_and_with_all_parts(tmp_path, capsys):
    alone = mpx.Record(study="mine", data="noise", metric="val_loss", metric_goal="min", output_dir=tmp_path)
    fit(alone)
    assert alone.folder == tmp_path / "mine/Module-noise-fp32-dense/seed0"
    assert f"completed, recorded in {alone.folder}\n" in capsys.readouterr().out
    found = record_of(alone.folder)
    assert (found["status"], found["metric"]) == ("completed", {"name": "val/loss", "goal": "min"})
    assert found["speed"]["reason"] == "no mpx.Throughput in the Trainer"
    parts = [mpx.Sparsity(recipe="gradual"), mpx.Throughput(), mpx.Numerics()]
    given = {"seed": np.int64(3), "changes": {"lr": np.float64(0.1)}}  # as of numpy.logspace
    both = mpx.Record(
        study="mine", data="noise", metric="val_loss", metric_goal="min", output_dir=tmp_path, **given
    )
    trainer = fit(*parts, both, plugins=mpx.Precision("amp"))
    assert both.folder.parent.name == "Module-noise-amp-2of4-lr=0.1-sparsity.recipe=gradual"
    trainer.test(trainer.lightning_module, loader(1), verbose=False)
    found = record_of(both.folder)
    assert {"val/loss", "test/loss"} <= found["metrics"].keys()
    assert (found["precision"]["optimizer_steps"], found["precision"]["skipped_steps"]) == (32, 0)
    assert found["precision"]["observed"].keys() == {"matmul"}
    assert found["sparsity"]["verified"]
    assert found["speed"]["train_samples_per_s"] > 0
    assert found["speed"]["model_tflops_per_s"] > 0
    runs, left_out = collect(tmp_path / "mine")
    assert [run.setting for run in runs] == ["amp-2of4 lr=0.1 sparsity.recipe=gradual", "fp32-dense"]
    assert left_out == []


@pytest.mark.parametrize(("lengths", "few"), [((4, 4, 6), True), (range(4, 14), False)])
def test_batches_of_many_lengths_have_no_flops_per_second(tmp_path, lengths, few):
    """The operations of one batch do not stand for those of longer ones. A smaller last batch is no other
    length.
    """

    class Padded(Module):
        def training_step(self, batch, index):
            return self.head(self.encoder(batch["x"]).relu()).square().mean()

    record = mpx.Record(study="mine", output_dir=tmp_path)
    batches = [
        {"x": torch.ones(8 if i < 2 else 5, length, 16), "y": torch.zeros(8 if i < 2 else 5)}
        for i, length in enumerate(lengths)
    ]
    silent_trainer(callbacks=[mpx.Throughput(0), record]).fit(Padded(), DataLoader(batches, batch_size=None))
    speed = record_of(record.folder)["speed"]
    assert speed["train_samples_per_s"] > 0
    assert (speed["model_tflops_per_s"] is not None) is few
    assert ("batches differ in the size of their samples" in speed["mfu_reason"]) is not few


class ToldToGo(pl.Callback):
    """SIGTERM comes to a worker of the data loader as well, and PyTorch says that first."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")


def test_a_worker_that_ends_by_the_signal_of_the_run_is_an_interruption(tmp_path):
    record = mpx.Record(output_dir=tmp_path)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run in this process may have left its own
    try:
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            fit(record, ToldToGo())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert record_of(record.folder)["status"] == "interrupted"


def test_record_of_a_model_that_is_not_pruned_yet(tmp_path, capsys):
    """It must not count as a 2:4 model: a callback has stopped training before the pruning, or prune_now is
    still to come.
    """
    part = mpx.Record(study="early", output_dir=tmp_path)
    fit(mpx.Sparsity(), part, EarlyStopping("val_loss", min_delta=100.0, patience=1))
    assert record_of(part.folder)["status"] == "failed"
    expected = (
        "training stopped at step 16, and the pruning was due by step 16, so the model is not 2of4. "
        "Prune earlier (sparsity.start"
    )
    assert record_of(part.folder)["error"].startswith(expected)
    assert f"failed ({expected}" in capsys.readouterr().out
    sparsity, part = mpx.Sparsity(recipe="one_shot"), mpx.Record(study="one_shot", output_dir=tmp_path)
    trainer = fit(sparsity, part)
    assert record_of(part.folder)["error"] == (
        "the model is not 2of4 yet: call prune_now(trainer) of the mpx.Sparsity, then trainer.test."
    )
    sparsity.prune_now(trainer)
    trainer.test(trainer.lightning_module, loader(1), verbose=False)
    found = record_of(part.folder)
    assert (found["status"], found["sparsity"]["verified"], "error" in found) == ("completed", True, False)


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ("loss", "val/loss is infinite or NaN"),
        ("weights", "the weights of encoder.weight are infinite or NaN"),
        ("", "32 optimizer steps in a row were skipped because"),
    ],
)
def test_record_of_a_run_that_diverged_says_why(tmp_path, capsys, lost, why):
    class Lost(Module):
        def loss(self, batch):
            return super().loss(batch) * (float("nan") if self.training and lost == "weights" else 1.0)

        def validation_step(self, batch, index):
            if lost == "weights":
                self.log("val_accuracy", 0.25)  # of the first class, which NaN is taken for
            else:
                self.log("val_loss", self.loss(batch) * float("nan"))

    part, plugin = (
        mpx.Record(output_dir=tmp_path),
        mpx.Precision("fp32") if lost else mpx.Precision("amp", initial=1e30, ceiling=1e31),
    )
    fit(part, module=Lost() if lost else Module(), plugins=plugin)
    assert record_of(part.folder)["status"] == "diverged"
    assert record_of(part.folder)["error"].startswith(why)
    assert f"diverged ({why}" in capsys.readouterr().out


def test_record_of_a_model_whose_pattern_another_callback_has_broken(tmp_path):
    class Filling(pl.Callback):
        def on_train_end(self, trainer, module):
            torch.nn.init.ones_(module.encoder.weight)

    part = mpx.Record(output_dir=tmp_path)
    with pytest.raises(mpx.UserError, match="1 pruned weight broke the 2of4 pattern"):
        fit(mpx.Sparsity(), Filling(), part)
    found = record_of(part.folder)
    assert (found["status"], found["sparsity"]["verified"]) == ("failed", False)
    assert found["error"].startswith(
        "When the training was over, 1 pruned weight broke the 2of4 pattern: encoder.weight"
    )


def test_record_of_a_continued_and_of_a_failed_run(tmp_path):
    class Failing(Module):
        def on_train_epoch_start(self):
            if self.trainer.current_epoch == 2:
                raise OSError("the disk is gone")

    part = mpx.Record(output_dir=tmp_path, model="net")
    with pytest.raises(OSError, match="the disk is gone"):
        fit(part, module=Failing(), enable_checkpointing=True, default_root_dir=tmp_path / "theirs")
    assert record_of(part.folder)["status"] == "failed"
    assert record_of(part.folder)["error"] == "OSError: the disk is gone"
    (path,) = (tmp_path / "theirs").rglob("*.ckpt")
    again = mpx.Record(output_dir=tmp_path, model="net")
    fit(again, ckpt=path)
    assert again.folder.name == "seed0-2"
    found = record_of(again.folder)
    assert (found["status"], found["environment"]["resumed_from_steps"]) == ("completed", [16])
