"""A Lightning project of one's own through the front door: its record, its checkpoints, resuming, and
mistakes in one line.
"""

import json
import shutil

import own_projects
import pytest
import pytorch_lightning as pl
import torch
from own_projects import GAN, Blobs, TransformerLM, UNet
from silent import silent_trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mpx
from mpx.deploy.record import completed_run
from mpx.errors import UserError
from mpx.runs.result import metric_name

UNET = [
    "module._target_=own_projects.UNet",
    "datamodule._target_=own_projects.Blobs",
    "metric=val/dice",
    "trainer.max_epochs=2",
]
GAN_WORDS = [
    "module._target_=own_projects.GAN",
    "datamodule._target_=own_projects.Blobs",
    "metric=val_distance",
    "metric_goal=min",
]
STREAM = [*UNET, "datamodule._target_=own_projects.Stream"]
LM = [
    "module._target_=own_projects.TransformerLM",
    "metric=val_perplexity",
    "metric_goal=min",
    "trainer.max_epochs=2",
]


def test_a_segmentation_project(train):
    ran = train(
        *UNET, "precision=amp", "sparsity=2of4", "+module.lr=0.02", "+module.width=16", "+datamodule.size=24"
    )
    assert ran.code == 0, ran.err
    name = "own_projects.UNet-own_projects.Blobs-amp-2of4-datamodule.size=24-module.lr=0.02-module.width=16-trainer.max_epochs=2"
    assert ran.folder.parent.name == name
    record = ran.record
    assert record["config"]["module"] == {"_target_": "own_projects.UNet", "lr": 0.02, "width": 16}
    assert record["metric"] == {"name": "val/dice", "goal": "max"}
    assert 0 < record["metrics"]["val/dice"] < 1
    assert "train/loss" in record["metrics"]
    assert (record["config"]["data"], record["precision"]["optimizer_steps"]) == ({"batch_size": 8}, 6)
    assert record["sparsity"]["verified"]
    assert record["speed"]["chosen"]["why"]["compile"] == "a module's own training_step"
    assert "val/dice 0." in ran.out
    with pytest.raises(UserError, match=r"is of a module of your own.*Use model=, data= and ckpt=FILE"):
        completed_run(str(ran.folder))


REGRESSION = [
    "module._target_=own_projects.Regression", "datamodule._target_=own_projects.Tested", "metric=val/mse",
    "metric_goal=min"
]  # fmt: skip


@pytest.mark.parametrize("words", [LM, REGRESSION])
def test_a_validation_before_the_pruning_is_not_recorded(interrupted, words):
    """As of mpx's own models: docs/run-folder.md says that it is missing."""
    ran = interrupted(14, *words, "sparsity=2of4", "sparsity.start=0.67", "trainer.max_epochs=3")
    assert ran.record["sparsity"]["verified"] is True
    assert not [name for name in ran.record["metrics"] if not name.startswith("train")]


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_module_that_writes_events_itself(train, forked, tmp_path, devices):
    """Before the run has begun, when nothing is written, and in processes that write nothing."""
    words = [*UNET, "module._target_=own_projects.Writing", "trainer.max_epochs=1"]
    shutil.copy(own_projects.__file__, tmp_path)
    ran = train(*words) if devices == 1 else forked(*words, f"trainer.devices={devices}")
    assert ran.code == 0, ran.err
    tags = EventAccumulator(str(ran.folder)).Reload().Tags()
    assert "about/text_summary" in tags["tensors"]
    assert (tags["histograms"], "weights" in tags["scalars"], "early" in tags["scalars"]) == (
        ["head"],
        True,
        False,
    )


LIGHTNING = """
import lightning
import lightning as L
import torch
from lightning import Callback, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from own_projects import Blobs, UNet

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.Flatten())
        self.head = torch.nn.Linear(16 * 64, 64)

    def configure_callbacks(self):
        assert issubclass(EarlyStopping, Callback) and L.Fabric and L.__version__ and lightning.pytorch.Trainer is L.Trainer
        return [EarlyStopping("val_loss", patience=3)]

    def training_step(self, batch, index):
        return (self.head(self.net(batch[0])) - batch[1].flatten(1)).square().mean()

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
"""


@pytest.mark.slow
def test_a_project_of_the_package_lightning(forked, tmp_path):
    """The same classes under another name, whether or not that package is there."""
    shutil.copy(own_projects.__file__, tmp_path)
    (tmp_path / "their_net.py").write_text(LIGHTNING)
    words = [
        "module._target_=their_net.Net",
        "datamodule._target_=own_projects.Blobs",
        "metric=val_loss",
        "metric_goal=min",
    ]
    ran = forked(*words, "trainer.max_epochs=2", "precision=amp", "sparsity=2of4")
    assert ran.code == 0, ran.err
    assert ran.record["sparsity"]["verified"]


def test_its_checkpoint_loads_without_mpx(train, tmp_path):
    ran = train(*UNET, "precision=amp", "sparsity=2of4")
    checkpoint = ran.folder / "checkpoints" / "last.ckpt"
    module = UNet.load_from_checkpoint(checkpoint, weights_only=True)
    plain = UNet()
    assert list(torch.load(checkpoint, weights_only=True)["state_dict"]) == list(plain.state_dict())
    assert (module.middle[0].weight.flatten(1).unflatten(1, (-1, 3, 3))[:, :4] != 0).sum(1).eq(2).all()


@pytest.mark.filterwarnings("ignore")  # Lightning's own hints, which its users see
def test_its_own_trainer_continues_it(train, tmp_path):
    ran = train(*UNET, "precision=amp", "precision.loss_scale.initial=512")
    trainer = silent_trainer(max_epochs=3, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(UNet(), Blobs(), ckpt_path=ran.folder / "checkpoints" / "last.ckpt", weights_only=False)
    assert trainer.global_step == 18


@pytest.mark.parametrize("mode", ["amp", "bf16_true"])
def test_a_project_with_two_optimizers(train, mode):
    ran = train(
        *GAN_WORDS,
        "trainer.max_epochs=2",
        f"precision={mode}",
        "sparsity=2of4",
        "numerics.every=2",
        "trainer.log_every_n_steps=2",
    )
    assert ran.code == 0, ran.err
    assert ran.record["precision"]["optimizer_steps"] == 24
    assert ran.record["metrics"].keys() >= {"val/distance", "own/g_loss"}
    assert "step 6: 3 of 4 layers pruned to 2of4" in ran.out  # a batch is a step


@pytest.mark.parametrize("recipe", ["asp", "one_shot", "from_start", "gradual", "sr_ste"])
def test_every_recipe(train, recipe):
    ran = train(*LM, "sparsity=2of4", f"sparsity.recipe={recipe}")
    assert ran.code == 0, ran.err
    assert ran.folder.parent.name.startswith("own_projects.TransformerLM-own-fp32-2of4")
    assert (ran.record["sparsity"]["verified"], ran.record["sparsity"]["recipe"]) == (True, recipe)
    best = torch.load(ran.folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["callbacks"]["Pruning"]["complete"] is True


def test_audit_profile_and_layout(train):
    asked = ["trainer.channels_last=true", "audit=true", "profile=true"]
    ran = train(*UNET, "precision=amp_bf16", *asked, "trainer.max_epochs=6")
    assert ran.code == 0, ran.err
    assert ran.record["precision"]["observed"]["conv"].keys() == {"bf16"}
    assert ran.record["profile"]["operations"]
    assert ran.record["speed"]["train_samples_per_s"] > 0
    assert ran.record["speed"]["chosen"]["channels_last"] is True
    weights = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert weights["middle.0.weight"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("words", "module", "at"), [(LM, TransformerLM, 6), (GAN_WORDS, GAN, 12)])
def test_a_run_that_was_cut_off_continues(train, monkeypatch, words, module, at):
    """With the masks, the loss scale and the steps of its first part. The order of its batches is
    Lightning's.
    """
    words = [*words, "trainer.max_epochs=2", "precision=amp", "sparsity=2of4"]

    def cut(self):
        if self.current_epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "on_train_epoch_start", cut)
        ran = train(*words, "trainer.save_every_s=0")
    assert json.loads((ran.folder / "result.json").read_text())["status"] == "interrupted"
    again = train(*words, "if_exists=resume")
    assert again.code == 0, again.err
    assert again.record["environment"]["resumed_from_steps"] == [at]
    assert again.record["sparsity"]["verified"]
    assert again.record["precision"]["optimizer_steps"] == 2 * at


def test_a_run_that_was_cut_off_in_its_test_is_validated_again(train):
    words = [*UNET, "datamodule._target_=own_projects.Tested"]
    first = train(*words)
    known = first.record["metrics"]
    (first.folder / "result.json").unlink()
    again = train(*words, "if_exists=resume")
    assert again.code == 0, again.err
    assert {name: known[name] for name in ("val/dice", "test/dice")} == again.record["metrics"]


# what is typed, where UNET, STREAM and GAN_WORDS stand for their words, and how the line begins
MISTAKES = """
module._target_=own_projects.Nothing | module._target_=own_projects.Nothing cannot be built in
module._target_=own_projects.block | module._target_=own_projects.block: missing a required argument: 'channels_in'. It takes channels_in, channels. Set an argument as +module.NAME=VALUE.
module._target_=[a.Net] | module._target_=['a.Net'] must be a text.
UNET trainer.limit_train_batches=1e-9 | You requested to check 1e-09 of the `train_dataloader`
module._target_=no_such.Net | module._target_=no_such.Net: no module no_such in
UNET +module.wdith=3 | module._target_=own_projects.UNet: got an unexpected keyword argument 'wdith'. It takes
UNET module.width=3 | module.width: an argument of the constructor is added with a +, as +module.width=VALUE.
UNET datamodule._target_=own_projects.Bare +datamodule.size=3 | datamodule.size is not an argument of own_projects.Bare, which has no __init__ of its own. Leave it out.
UNET module._target_=own_projects.Copied | module._target_=own_projects.Copied made a Copied; it must make a LightningModule.
UNET optimizer=adamw | optimizer=adamw: the module of module._target_=own_projects.UNet brings its own optimizer.
UNET trainer.compile=default | trainer.compile=default is not possible with a module of your own: call torch.compile in
GAN_WORDS metric=val/distance | metric=val/distance: the module logs no such value. Did you mean val_distance? It logs g_loss, val_distance.
metric=val/dice | metric belongs to a project of your own. Name its module, as module._target_=package.module.Class.
UNET metric=test/dice | metric=test/dice: UNet has no test_step, or its data no loader for it.
GAN_WORDS trainer.gradient_clip_val=1 | Automatic gradient clipping is not supported for manual optimization.
UNET module._target_=own_projects.ByLBFGS sparsity=2of4 | sparsity=2of4 with LBFGS: a step computes the loss several times and moves along directions of earlier steps
UNET module._target_=own_projects.ByLBFGS metric=val/step | metric=val/step: the module logs it for single steps alone.
UNET module._target_=own_projects.Aimless | module: configure_optimizers of Aimless returns no optimizer
UNET module._target_=own_projects.Stepless | No `training_step()` method defined.
STREAM sparsity=2of4 | sparsity.start=0.5 is a share of a run whose number of steps is unknown. Set trainer.max_steps
UNET module._target_=own_projects.Early trainer.max_epochs=8 sparsity=2of4 | training stopped at step 12, and the pruning was due by step 24, so the model is not 2of4. Prune earlier (sparsity.start
datamodule._target_=own_projects.Blobs module._target_=own_projects.Regression | metric is not set, and mpx.compare needs a value by which to compare runs. The validation logs metric=val/mse metric_goal=min. Add one of these;
STREAM +module.lr=1e20 | the loss became infinite or NaN by step
"""


@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`")
@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_mistakes_are_one_line(train, case):
    words, said = case.split(" | ")
    named = {"UNET": UNET, "STREAM": STREAM, "GAN_WORDS": GAN_WORDS}
    ran = train(*(word for name in words.split() for word in named.get(name, [name])))
    assert ran.code != 0
    assert ran.err.startswith(f"error: {said}"), ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.filterwarnings("ignore:Total length of")
def test_without_a_batch_nothing_has_completed(train):
    ran = train(*UNET, "datamodule._target_=own_projects.Empty")
    assert ran.code == 2
    assert "error: the data for training have no batch, so that nothing is trained." in ran.err
    assert not ran.outputs.exists()


@pytest.mark.filterwarnings("ignore:Attribute 'net' is an instance of")
def test_parts_of_the_module_are_built_as_by_hydra(train):
    """As lightning-hydra-template's: a network, a function that makes the optimizer, and plain containers."""
    net = [
        "+module.net._target_=own_projects.block",
        "+module.net.channels_in=1",
        "+module.net._args_=[]",
        "+module.net.channels=8",
    ]
    optimizer = [
        f"+module.optimizer.{word}" for word in ("_target_=torch.optim.SGD", "_partial_=true", "lr=0.05")
    ]
    ran = train(
        *UNET,
        "module._target_=own_projects.Composed",
        *net,
        *optimizer,
        "+module.sizes={head: [8, 1]}",
        "trainer.max_epochs=1",
    )
    assert ran.code == 0, ran.err
    assert "-module.net._target_=own_projects.block" in ran.folder.parent.name


@pytest.mark.parametrize("words", [LM, ["module._target_=own_projects.Unvalidated"]])
def test_a_metric_of_the_training(train, words):
    """Which the module logs at the end of an epoch, after the validation; or without any."""
    ran = train(*words, "metric=train_loss_epoch", "metric_goal=min", "trainer.max_epochs=2")
    assert ran.code == 0, ran.err
    assert ran.record["metric"] == {"name": "train/loss_epoch", "goal": "min"}
    assert ran.record["metrics"]["train/loss_epoch"] > 0
    if words is LM:
        best = torch.load(ran.folder / "checkpoints" / "best.ckpt", weights_only=True)["best"]
        assert best == pytest.approx(ran.record["metrics"]["train/loss_epoch"])


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("val_dice", "val/dice"),
        ("val/mean dice", "val/mean_dice"),
        ("mean dice", "own/mean_dice"),
    ],
)
def test_a_name_in_the_record_is_one_word(name, known):
    """mpx.compare takes a record with another for damaged."""
    assert metric_name(name) == known


def test_weights_that_a_callback_averages_from_after_the_pruning_on(train):
    ran = train(
        *UNET,
        "module._target_=own_projects.Averaged",
        "+module.begin=4",
        "trainer.max_epochs=4",
        "sparsity=2of4",
    )
    assert (ran.code, ran.record["sparsity"]["verified"]) == (0, True), ran.err


def trained_alike(ran, words, module, **given):
    """A Trainer after it has trained the module to the weights of the run, bit for bit."""
    pl.seed_everything(0, workers=True, verbose=False)
    trainer = silent_trainer(max_epochs=2, **given)
    trainer.fit(module := module(), None if words is LM else Blobs())
    weights = torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    return trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("words", "module"), [(LM, TransformerLM), (UNET, UNet), (GAN_WORDS, GAN)])
def test_weights_and_metrics_are_those_of_its_own_trainer(train, words, module):
    """Bit for bit; also the training's metrics, of which the newest epoch ends after its validation."""
    ran = train(*words, "trainer.max_epochs=2")
    trainer = trained_alike(ran, words, module)
    assert ran.record["metrics"] == {
        metric_name(name): value.item() for name, value in trainer.callback_metrics.items()
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("words", "module"), [(LM, TransformerLM), (UNET, UNet), (GAN_WORDS, GAN)])
@pytest.mark.parametrize(
    ("precision", "sparsity", "recipe"), [("amp", "2of4", "asp"), ("bf16_true", "unstructured", "gradual")]
)
def test_the_parts_in_its_own_trainer_do_what_the_command_does(
    train, tmp_path, words, module, precision, sparsity, recipe
):
    """Bit for bit, with the same record of precision and sparsity."""
    ran = train(
        *words,
        "trainer.max_epochs=2",
        f"precision={precision}",
        f"sparsity={sparsity}",
        f"sparsity.recipe={recipe}",
    )
    record = mpx.Record(output_dir=tmp_path / "own")
    callbacks = [mpx.Sparsity(sparsity, recipe=recipe), mpx.Throughput(), mpx.Numerics(), record]
    trained_alike(
        ran, words, module, num_sanity_val_steps=0, plugins=mpx.Precision(precision), callbacks=callbacks
    )
    own = json.loads((record.folder / "result.json").read_text())
    assert own["metrics"] == ran.record["metrics"]
    for part in ("precision", "sparsity"):
        assert {key: value for key, value in own[part].items() if key in ran.record[part]} == ran.record[part]
