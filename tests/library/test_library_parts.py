"""Each public part alone in an ordinary Trainer, as a new user would try it: dict batches, several networks, resumed runs."""

import json
import signal

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, EMAWeightAveraging
from pytorch_lightning.plugins import MixedPrecision
from silent import silent_trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import mpx
from mpx.compare.collect import collect
from mpx.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's hints about workers, loggers and the machine are not the subject here


class Module(pl.LightningModule):
    """Two networks, none of them called `model`, and batches that are dictionaries."""

    def __init__(self, schedule=None):
        super().__init__()
        self.encoder, self.head, self.schedule = nn.Linear(16, 32), nn.Linear(32, 4), schedule
        self.rates = []

    def loss(self, batch):
        return cross_entropy(self.head(self.encoder(batch["x"]).relu()), batch["y"])

    def training_step(self, batch, index):
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, index):
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-3)
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"}}


def loader(seed=0):
    made = torch.Generator().manual_seed(seed)
    samples = [{"x": torch.randn(16, generator=made), "y": torch.tensor(i % 4)} for i in range(64)]
    return DataLoader(samples, batch_size=8)


def fit(*callbacks, module=None, epochs=4, ckpt=None, **kwargs):
    torch.manual_seed(0)
    trainer = silent_trainer(max_epochs=epochs, callbacks=list(callbacks), **kwargs)
    trainer.fit(module or Module(), loader(), loader(1), ckpt_path=ckpt)
    return trainer


@pytest.mark.parametrize("recipe", ["asp", "one_shot", "from_start", "gradual", "sr_ste"])
def test_sparsity_alone(recipe, capsys):
    part = mpx.Sparsity("2of4", recipe=recipe)
    trainer = fit(part)
    if recipe == "one_shot":
        part.prune_now(trainer)
    pruned = trainer.lightning_module.encoder.weight
    assert (pruned.reshape(-1, 4) != 0).sum(1).eq(2).all()
    assert part.record(fmt="fp32", device=torch.device("cpu"))["verified"]
    assert ("1 of 2 layers pruned to 2of4" in capsys.readouterr().out) == (recipe != "one_shot")


def test_sparsity_continues_a_checkpoint(tmp_path):
    path = tmp_path / "half.ckpt"
    fit(mpx.Sparsity(start=0.25), epochs=2, limit_train_batches=4, enable_checkpointing=True, default_root_dir=tmp_path).save_checkpoint(
        path
    )
    part = mpx.Sparsity(start=0.25)
    before = torch.load(path, weights_only=False)["callbacks"]["Pruning"]["masks"]["encoder.weight"]
    fit(part, ckpt=path)
    assert torch.equal(part.masks.masks["encoder.weight"], before)
    with pytest.raises(UserError, match=r"pruned to 2of4, mpx.Sparsity is unstructured.*same pattern"):
        fit(mpx.Sparsity("unstructured"), ckpt=path)


def test_a_trainer_that_goes_back_to_a_checkpoint_from_before_the_pruning(tmp_path):
    class Saving(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch == 0 and not (tmp_path / "dense.ckpt").exists():
                trainer.save_checkpoint(tmp_path / "dense.ckpt")

    trainer = fit(mpx.Sparsity(), Saving())
    trainer.fit(trainer.lightning_module, loader(), loader(1), ckpt_path=tmp_path / "dense.ckpt")
    fresh = fit(mpx.Sparsity(), ckpt=tmp_path / "dense.ckpt")
    assert torch.equal(trainer.lightning_module.encoder.weight, fresh.lightning_module.encoder.weight)


@pytest.mark.parametrize(
    ("length", "again", "said"),
    [(8, True, "LambdaLR starts again"), (30, False, "LambdaLR goes on: it does not come to its end within the 16 steps that are left")],
)
def test_a_schedule_starts_again_where_it_fits(length, again, said, capsys):
    module = Module(lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / length)))
    fit(mpx.Sparsity(), module=module)
    assert said in capsys.readouterr().out
    assert module.rates[16] == pytest.approx(1e-3 if again else 1e-3 * (1 - 16 / length))
    assert (module.rates[16:] == module.rates[:16]) is again


@pytest.mark.parametrize(("mode", "theirs"), [("amp", None), ("fp32", None), (None, "bf16-mixed"), (None, "32-true")])
def test_numerics_and_throughput_alone(mode, theirs):
    numerics, throughput = mpx.Numerics(every=4, histogram=True), mpx.Throughput()
    fit(numerics, throughput, **({"plugins": mpx.Precision(mode)} if mode else {"precision": theirs}))
    found = numerics.record()
    assert found["gradient_samples"] == 8
    assert found["gradient_underflow_fraction"] is not None
    assert set(numerics.layers) == {"encoder", "head"}
    assert throughput.measured_steps == 22
    assert throughput.samples == 22 * 8
    assert throughput.record(None)["data_wait_fraction"] is None
    assert mpx.Numerics().every == 200  # auto


def test_lightnings_own_scaler_does_not_say_how_many_steps_it_skipped(tmp_path):
    record = mpx.Record(study="mine", data="noise", metric="val_loss", metric_goal="min", output_dir=tmp_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # the first steps overflow
    fit(record, plugins=MixedPrecision("16-mixed", "cpu", scaler))
    found = record_of(record.folder)["precision"]
    assert found["loss_scale"]["final"] < 2.0**127
    assert (found["optimizer_steps"], found["skipped_steps"]) == (None, None)


def test_precision_rounds_and_leaves_the_switches_as_they_were():
    before = torch.backends.cuda.matmul.fp32_precision
    plugin = mpx.Precision("amp", initial=1024.0)
    trainer = fit(plugins=plugin, epochs=1)
    assert plugin.record()["loss_scale"]["initial"] == 1024.0
    assert plugin.emulate
    assert plugin.steps == trainer.global_step == 8
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mpx.Precision("am"), r"mpx.Precision\('am'\): no such mode. Did you mean amp\?"),
        (lambda: mpx.Precision("fp32", initial=2.0), r"scales no loss. Leave initial out"),
        (lambda: mpx.Precision("amp", initial=-1), r"mpx.Precision\(initial=-1\) must be a number"),
        (lambda: mpx.Precision("amp", start=1), r"no argument start"),
        (lambda: mpx.Sparsity("2of3"), r"mpx.Sparsity\('2of3'\): no such pattern. Did you mean 2of4"),
        (lambda: mpx.Sparsity(recipe="apex"), r"mpx.Sparsity\(recipe='apex'\) must be one of asp"),
        (lambda: mpx.Sparsity(decay=1.0), r"sparsity.decay has no meaning for sparsity.recipe=asp"),
        (lambda: mpx.Sparsity(start=0.2, start_step=100), r"sparsity.start and sparsity.start_step both say"),
        (lambda: mpx.Sparsity("nofm", n=4, m=2), r"sparsity.n=4 must be below sparsity.m=2"),
        (lambda: fit(mpx.Sparsity(only=["head"])), r"finds nothing to prune"),
        (lambda: mpx.Record("a/b"), r"study=a/b must be a folder's name"),
        (lambda: mpx.Record(metric_goal="up"), r"metric_goal=up must be one of max, min\. For example metric_goal="),
        (lambda: mpx.Record(metric=3), r"metric=3 must be a name that the module logs.*For example metric=val/dice"),
        (lambda: mpx.Record(model="my/net"), r"model=my/net must be a folder's name"),
        (lambda: mpx.Record(seed=-1), r"seed=-1 must be a whole number of at least 0"),
        (lambda: mpx.Record(changes=["lr"]), r"changes=\['lr'\] must be a mapping. For example changes=\{\"lr\": 0.1\}"),
        (lambda: mpx.Record(changes={"a b": 1}), r"changes has the key 'a b'. Use letters, digits"),
        (
            lambda: mpx.Record(changes={"lr": torch.tensor(0.1)}),
            r"changes.lr=tensor\(0.1000\) must be a number.*For example changes.lr=0.1",
        ),
        (lambda: mpx.Record(changes={"seed": 1}), r"changes has the key 'seed', which is known from mpx.Record\(seed=…\). Leave it out"),
        (lambda: fit(mpx.Record(metric="val_loss"), limit_val_batches=0), r"metric=val_loss: the Trainer validates nothing. Give it"),
        (lambda: mpx.nothing, "module 'mpx' has no attribute 'nothing'"),
    ],
)
def test_mistakes_are_one_line(call, said):
    with pytest.raises((UserError, AttributeError), match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_misspelt_metric_is_refused_before_anything_is_written(tmp_path):
    module = Module()
    with pytest.raises(UserError, match=r"metric=val_lss: the module logs no such value. Did you mean val_loss\? It logs val_loss"):
        fit(mpx.Record(metric="val_lss", output_dir=tmp_path), module=module)
    assert (module.rates, list(tmp_path.iterdir())) == ([], [])


def test_a_metric_of_one_of_several_validation_loaders(tmp_path):
    class Two(Module):
        def validation_step(self, batch, index, dataloader_idx=0):
            super().validation_step(batch, index)

        def test_step(self, batch, index, dataloader_idx=0):
            super().test_step(batch, index)

        def val_dataloader(self):
            return [loader(1), loader(2)]

    part = mpx.Record(metric="val_loss/dataloader_idx_1", metric_goal="min", output_dir=tmp_path)
    torch.manual_seed(0)
    trainer = silent_trainer(callbacks=part)
    trainer.fit(Two(), loader())
    assert record_of(part.folder)["metrics"]["val_loss/dataloader_idx_1"] == trainer.callback_metrics["val_loss/dataloader_idx_1"].item()
    part = mpx.Record(study="test", metric="test_loss/dataloader_idx_1", metric_goal="min", output_dir=tmp_path)
    trainer = silent_trainer(callbacks=part)
    trainer.fit(module := Two(), loader())
    trainer.test(module, [loader(3), loader(4)], verbose=False)
    assert record_of(part.folder)["metrics"]["test_loss/dataloader_idx_1"] == trainer.callback_metrics["test_loss/dataloader_idx_1"].item()
    part = mpx.Record(study="misspelt", metric="val_lss", output_dir=tmp_path)
    with pytest.raises(UserError, match=r"metric=val_lss: the module logs no such value"):
        silent_trainer(callbacks=part).fit(Two(), loader())


@pytest.mark.parametrize(("logged", "refused"), [(True, False), (False, True)])
def test_a_metric_of_the_training_is_looked_for_after_an_epoch(tmp_path, logged, refused):
    class Logs(Module):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            self.log("train_loss" if logged else "train_other", loss, on_step=False, on_epoch=True)
            return loss

    module, part = Logs(), mpx.Record(metric="train_loss", metric_goal="min", output_dir=tmp_path)
    if refused:
        with pytest.raises(UserError, match=r"metric=train_loss: the module logs no such value.*It logs train_other"):
            fit(part, module=module)
        assert len(module.rates) == 8
    else:
        fit(part, module=module, epochs=1)
        assert "train/loss" in record_of(part.folder)["metrics"]


def test_a_metric_that_the_module_logs_at_the_end_of_its_epochs(tmp_path):
    class Logs(Module):
        def on_train_epoch_end(self):
            self.log("train_loss", 1.0)

    part = mpx.Record(metric="train_loss", metric_goal="min", output_dir=tmp_path)
    fit(part, module=Logs(), epochs=3)
    assert record_of(part.folder)["metrics"]["train/loss"] == 1.0


def record_of(folder):
    return json.loads((folder / "result.json").read_text())


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
    both = mpx.Record(study="mine", data="noise", metric="val_loss", metric_goal="min", output_dir=tmp_path, **given)
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


def test_a_validation_before_the_pruning_is_that_of_another_model(tmp_path):
    """Three epochs, validated after the second one and pruned before the third."""
    record = mpx.Record(study="mine", output_dir=tmp_path)
    trainer = fit(mpx.Sparsity(start=0.67), record, epochs=3, check_val_every_n_epoch=2)
    assert record_of(record.folder)["metrics"] == {}
    trainer.test(trainer.lightning_module, loader(1), verbose=False)
    assert record_of(record.folder)["metrics"].keys() == {"test/loss"}


@pytest.mark.parametrize(("lengths", "alike"), [((4, 4, 4), True), ((4, 4, 6), False)])
def test_batches_of_several_lengths_have_no_flops_per_second(tmp_path, lengths, alike):
    """The first batch's operations do not stand for those of longer ones. A smaller last batch is no other length."""

    class Padded(Module):
        def training_step(self, batch, index):
            return self.head(self.encoder(batch["x"]).relu()).square().mean()

    record = mpx.Record(study="mine", output_dir=tmp_path)
    batches = [{"x": torch.ones(8 if i < 2 else 5, length, 16), "y": torch.zeros(8)} for i, length in enumerate(lengths)]
    silent_trainer(callbacks=[mpx.Throughput(0), record]).fit(Padded(), DataLoader(batches, batch_size=None))
    speed = record_of(record.folder)["speed"]
    assert speed["train_samples_per_s"] > 0
    assert (speed["model_tflops_per_s"] is not None) is alike
    assert ("samples differ in size between batches" in speed["mfu_reason"]) is not alike


@pytest.mark.parametrize("recipe", ["asp", "from_start", "sr_ste"])
def test_sparsity_and_record_of_a_second_trainer_are_its_own(tmp_path, recipe):
    """As in a loop over seeds with one list of callbacks: the masks are those of the second model, and the values, too."""
    parts = [mpx.Sparsity(recipe=recipe), mpx.Record(study="mine", output_dir=tmp_path)]
    found = []
    for scale in (1.0, 2.0):
        module = Module()
        with torch.no_grad():
            module.encoder.weight.mul_(scale).copy_(module.encoder.weight.roll(int(scale), 1))
        fit(*parts, module=module)
        record = record_of(parts[1].folder)
        assert record["sparsity"]["verified"]
        assert (module.encoder.weight == 0).float().mean() == 0.5
        found.append((parts[1].folder.name, record["metrics"]))
    assert [name for name, _ in found] == ["seed0", "seed0-2"]
    assert found[0][1] != found[1][1]


def test_the_loss_scale_and_the_steps_of_a_second_trainer_are_its_own():
    """A test after the training still has those of the training."""
    plugin, found = mpx.Precision("amp", initial=2.0**24, growth_interval=2), []
    for _ in range(2):
        torch.manual_seed(0)
        module = Module()
        trainer = fit(module=module, plugins=plugin, epochs=1)
        trainer.test(module, loader(), verbose=False)
        found.append((plugin.record(), module.head.weight.tolist()))
    assert found[0][0]["skipped_steps"] > 0
    assert found[0][0]["optimizer_steps"] + found[0][0]["skipped_steps"] == 8
    assert found[1] == found[0]


def test_a_checkpoint_that_could_not_be_continued_has_no_part_in_the_next_run(tmp_path):
    """The next run had its masks, and wrote its record over that of the checkpoint's run."""

    class OfTwo(Module):
        def configure_optimizers(self):
            return torch.optim.Adam([{"params": part.parameters()} for part in (self.encoder, self.head)])

    def parts():
        return [mpx.Sparsity(), mpx.Record(study="mine", model="net", output_dir=tmp_path)]

    fit(*parts()).save_checkpoint(tmp_path / "last.ckpt")
    pruning, record = parts()
    with pytest.raises(ValueError, match="parameter groups"):
        fit(pruning, record, module=OfTwo(), ckpt=tmp_path / "last.ckpt", epochs=6)
    fit(pruning, record, module=OfTwo())
    assert record.folder.name == "seed0-2"
    assert record_of(record.folder)["sparsity"]["verified"]


def test_numerics_of_a_second_trainer_are_its_own():
    module, numerics = Module(), mpx.Numerics(every=1, histogram=True)
    counts = []
    for _ in range(2):
        fit(numerics, module=module, epochs=1)
        counts.append((numerics.samples, [int(layer.sum()) for layer in numerics.layers.values()]))
    assert counts[0] == counts[1] == (8, [8 * 8 * 4, 8 * 8 * 32])  # in the order of the backward pass


def test_samples_that_the_user_counts_are_those_of_the_flops_too(tmp_path):
    """Each of 8 samples counts as 16 tokens: the throughput is 16 times as high, the arithmetic per second is not."""
    tokens = mpx.Throughput(2, samples=lambda batch: batch["x"].numel())
    record = mpx.Record(study="mine", output_dir=tmp_path)
    fit(tokens, record)
    found = record_of(record.folder)
    flops = 2 * (2 * 16 * 32 + 3 * 32 * 4)  # of a sample: the input needs no gradient
    assert found["speed"]["model_tflops_per_s"] == pytest.approx(found["speed"]["train_samples_per_s"] * flops / 16 / 1e12)
    assert found["config"]["data"]["batch_size"] == 8 * 16


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


def test_all_parts_continue_a_checkpoint(tmp_path):
    """As an uninterrupted run: the same weights, masks, loss scale and counts, and a time to train over both parts."""

    def parts():
        record = mpx.Record(output_dir=tmp_path, data="noise")
        return record, mpx.Sparsity(start_step=8), mpx.Throughput(), mpx.Numerics(every=4)

    def run(*callbacks, **kwargs):
        return fit(*callbacks, plugins=mpx.Precision("amp", initial=1024.0, growth_interval=4), **kwargs)

    whole = run(*(uninterrupted := parts()))
    path = tmp_path / "half.ckpt"
    run(*(first := parts()), epochs=2, enable_checkpointing=True, default_root_dir=tmp_path).save_checkpoint(path)
    again = run(*(second := parts()), ckpt=path)
    for mine, theirs in zip(again.lightning_module.parameters(), whole.lightning_module.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert second[0].folder == first[0].folder
    mine, theirs = record_of(second[0].folder), record_of(uninterrupted[0].folder)
    for name in ("optimizer_steps", "skipped_steps", "gradient_samples"):
        assert mine["precision"][name] == theirs["precision"][name]
    assert mine["precision"]["loss_scale"]["final"] == theirs["precision"]["loss_scale"]["final"] > 1024.0
    assert mine["sparsity"]["verified"]
    assert mine["speed"]["time_to_train_s"] > first[2].time_to_train_s


def test_record_of_a_model_that_is_not_pruned_yet(tmp_path, capsys):
    """It must not count as a 2:4 model: a callback has stopped training before the pruning, or prune_now is still to come."""
    part = mpx.Record(study="early", output_dir=tmp_path)
    fit(mpx.Sparsity(), part, EarlyStopping("val_loss", min_delta=100.0, patience=1))
    assert record_of(part.folder)["status"] == "failed"
    expected = "training stopped at step 16, and the pruning was due by step 16, so the model is not 2of4. Prune earlier (sparsity.start"
    assert record_of(part.folder)["error"].startswith(expected)
    assert f"failed ({expected}" in capsys.readouterr().out
    sparsity, part = mpx.Sparsity(recipe="one_shot"), mpx.Record(study="one_shot", output_dir=tmp_path)
    trainer = fit(sparsity, part)
    assert record_of(part.folder)["error"] == "the model is not 2of4 yet: call prune_now(trainer) of the mpx.Sparsity, then trainer.test."
    sparsity.prune_now(trainer)
    trainer.test(trainer.lightning_module, loader(1), verbose=False)
    found = record_of(part.folder)
    assert (found["status"], found["sparsity"]["verified"], "error" in found) == ("completed", True, False)


@pytest.mark.parametrize(
    ("lost", "why"), [(True, "val/loss is infinite or NaN"), (False, "32 optimizer steps in a row were skipped because")]
)
def test_record_of_a_run_that_diverged_says_why(tmp_path, capsys, lost, why):
    class Lost(Module):
        def validation_step(self, batch, index):
            self.log("val_loss", self.loss(batch) * float("nan"))

    part, plugin = mpx.Record(output_dir=tmp_path), mpx.Precision("fp32") if lost else mpx.Precision("amp", initial=1e30, ceiling=1e31)
    fit(part, module=Lost() if lost else Module(), plugins=plugin)
    assert record_of(part.folder)["status"] == "diverged"
    assert record_of(part.folder)["error"].startswith(why)
    assert f"diverged ({why}" in capsys.readouterr().out


def test_record_of_a_model_whose_pattern_an_average_has_broken(tmp_path):
    """Lightning puts the average in the place of the weights when the callbacks before it have seen the end."""
    part = mpx.Record(output_dir=tmp_path)
    fit(mpx.Sparsity(), EMAWeightAveraging(decay=0.9), part)
    found = record_of(part.folder)
    assert (found["status"], found["sparsity"]["verified"]) == ("failed", False)
    assert found["error"].startswith("When the training was over, 1 pruned weights broke the 2of4 pattern: encoder.weight")


def test_record_of_a_test_of_dense_weights(tmp_path, capsys):
    """As trainer.test(ckpt_path="best") does, where the best epoch came before the pruning."""

    class Saving(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "dense.ckpt")

    part = mpx.Record(output_dir=tmp_path)
    trainer = fit(mpx.Sparsity(), Saving(), part)
    assert record_of(part.folder)["status"] == "completed"
    trainer.test(trainer.lightning_module, loader(1), ckpt_path=tmp_path / "dense.ckpt", verbose=False)
    assert record_of(part.folder)["status"] == "failed"
    assert "failed (the tested weights are not 2of4. Test the newest, or a checkpoint from after the pruning.)" in capsys.readouterr().out


def test_record_of_a_continued_and_of_a_failed_run(tmp_path):
    class Failing(Module):
        def on_train_epoch_start(self):
            if self.trainer.current_epoch == 2:
                raise OSError("the disk is gone")

    part = mpx.Record(output_dir=tmp_path, data="noise")
    with pytest.raises(OSError, match="the disk is gone"):
        fit(part, module=Failing(), enable_checkpointing=True, default_root_dir=tmp_path / "theirs")
    assert record_of(part.folder)["status"] == "failed"
    assert record_of(part.folder)["error"] == "OSError: the disk is gone"
    (path,) = (tmp_path / "theirs").rglob("*.ckpt")
    again = mpx.Record(output_dir=tmp_path, data="noise")
    fit(again, ckpt=path)
    assert again.folder == part.folder
    assert record_of(part.folder)["status"] == "completed"
    fit(again)  # another run, that continues nothing
    assert again.folder != part.folder


def test_an_optimizer_that_moves_pruned_weights_is_found_at_once():
    """Muon makes all directions of a matrix equally long, and so moves weights without gradient and momentum."""

    class Orthogonal(Module):
        def configure_optimizers(self):
            return torch.optim.Muon([weight for weight in self.parameters() if weight.dim() == 2], lr=0.02)

    module = Orthogonal()
    with pytest.raises(mpx.UserError, match="An optimizer that moves weights without gradients, such as Muon, changes them") as caught:
        fit(mpx.Sparsity("2of4", start=0.5), module=module)
    assert "When the first step after the pruning ended, 1 pruned weights broke" in str(caught.value)
    assert len(module.rates) == 16 + 1
