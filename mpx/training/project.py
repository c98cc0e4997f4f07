"""Build a run of the user's own LightningModule and LightningDataModule, from the parts that stand alone in any Trainer (mpx/library/)."""

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.callbacks import Callback

from mpx.acceleration.apply import Acceleration, say
from mpx.acceleration.choice import Choice
from mpx.acceleration.compiled import prepare_compiler
from mpx.errors import UserError
from mpx.library.parts import Newest, refuse_missing
from mpx.library.sparsity import Sparsity, arguments
from mpx.precision.choose import build_precision
from mpx.precision.modes import remedy
from mpx.record.result import metric_name, stage_of
from mpx.runs.beginning import Beginning
from mpx.runs.checkpoint import Best
from mpx.runs.folder import Folder
from mpx.runs.history import Continued
from mpx.runs.random_state import SameOrder
from mpx.runs.trained_as import setting_of
from mpx.settings.sparsity import RECIPES_OF
from mpx.training.assemble import Run
from mpx.training.continued_epoch import ContinuedEpoch
from mpx.training.devices import choose_devices
from mpx.training.last_validation import SameWeights
from mpx.training.measuring import build_measuring
from mpx.training.own import build_datamodule, build_module, offers
from mpx.training.own_speed import OwnSpeed
from mpx.training.plateau import PlateauStep
from mpx.training.pruning import load_dense_weights
from mpx.training.trainer import build_trainer

NO_CHOICE = Choice(  # the module itself says how its steps run
    cuda_graphs=False,
    compile="off",
    graphs_required=False,
    against=dict.fromkeys(("cuda_graphs", "compile"), "a module's own training_step"),
)


def assemble_project(cfg: DictConfig, folder: Folder, begin: Callable[[pl.Trainer], None]) -> Run:
    """Build the run of `cfg`. Raises UserError for a setting that this machine or the module cannot meet.

    begin: called immediately before the first batch.
    """
    devices = choose_devices(cfg.trainer)
    precision = build_precision(cfg.precision, devices.root, own=True)
    prepare_compiler()  # the module may compile itself
    module = build_module(cfg.module)
    datamodule = build_datamodule(cfg.datamodule, module)
    _check_manual(cfg.trainer, module)
    _check_metric(cfg.metric, module, datamodule)
    if folder.resume_from is None:  # otherwise the weights come from the checkpoint
        load_dense_weights(cfg.sparsity, module)
    history, logged, speed = Continued(folder.resume_from, setting_of(cfg)), Logged(cfg.metric), OwnSpeed(cfg.speed, cfg.trainer)
    measuring = build_measuring(cfg, folder.path, precision, Acceleration(), NO_CHOICE, own=True)
    validated = cfg.metric if offers("validation", module, datamodule) and _stage(cfg.metric) != "test" else None
    best = Best(folder.path, validated, cfg.metric_goal, logged.check)
    pruning = None
    if cfg.sparsity.pattern != "dense":
        after = [best.forget, logged.values.forget, *([measuring.profile.restart] if measuring.profile is not None else [])]
        pruning = build_sparsity(cfg.sparsity, after)
    beginning, advice = Beginning(begin), remedy(precision.mode, None)
    same = SameWeights()
    own = [SameOrder(), PlateauStep(), same, ContinuedEpoch(), speed, logged]
    trainer = build_trainer(
        cfg, folder.path, devices, precision, history, best, measuring, pruning, None, beginning,
        own=own, manual=not module.automatic_optimization, advice=advice,
    )  # fmt: skip
    return Run(
        devices, precision, datamodule, module, measuring, pruning, history, beginning, trainer, advice,
        results=lambda: logged.values, chosen=lambda: (speed.choice or NO_CHOICE).record(),
        has=lambda stage: offers(stage, module, datamodule), after_training=lambda: same.after_training(trainer),
    )  # fmt: skip


def build_sparsity(sparsity: DictConfig, after: list[Callable[[pl.Trainer], None]]) -> Sparsity:
    """after: called right after the pruning."""
    settings, usual = OmegaConf.to_container(sparsity, resolve=True), arguments(sparsity.pattern)
    if sparsity.dense_ckpt is not None:
        settings |= {"start": 0.0, "start_step": None, "start_epoch": None}
    # mpx.Sparsity refuses what its recipe ignores
    read = [name for name in usual if sparsity.recipe in RECIPES_OF.get(name, (sparsity.recipe,))]
    return Sparsity(sparsity.pattern, after=after, **{name: settings[name] for name in read if settings[name] != usual[name]})


def _check_manual(trainer: DictConfig, module: pl.LightningModule) -> None:
    for key, plain in (("gradient_clip_val", None), ("accumulate_grad_batches", 1)):
        if trainer[key] != plain and not module.automatic_optimization:
            raise UserError(
                f"trainer.{key}={trainer[key]}: {type(module).__name__} has manual optimization, and steps its optimizers itself. "
                "Leave it out, and do it in training_step."
            )


def _check_metric(metric: str | None, module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    stage = {"val": "validation", "test": "test"}.get(_stage(metric))
    if stage is not None and not offers(stage, module, datamodule):
        raise UserError(
            f"metric={metric}: {type(module).__name__} has no {stage}_step, or its data no loader for it. "
            "Name a metric of another stage, or leave metric out."
        )


def _stage(metric: str | None) -> str | None:
    return None if metric is None else stage_of(metric)


class Logged(Callback):
    """Keeps the newest value of everything that the module logs. metric: must be among it; None: nothing must.

    Checkpoints hold the values of the newest validation: a run that was cut off after its last step validates no more. Those of the
    training are known only once the epoch's checkpoint is written.
    """

    def __init__(self, metric: str | None):
        self.metric = metric
        self.values = Newest()
        self._before: dict[str, Any] = {}  # what was logged before the newest validation
        self._validated: set[str] = set()  # names of what was logged in it
        self._ran = False  # whether it was in this process
        self._old: Any = None  # the metric's value, where the newest validation has not logged it

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):  # Lightning's own stands for None
            raise UserError(
                f"module: configure_optimizers of {type(pl_module).__name__} returns no optimizer, so that mpx sees no step. "
                "Return those that it steps."
            )

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.values.take(trainer)
        logged = trainer.callback_metrics.items()
        self._validated = {metric_name(name) for name, value in logged if value is not self._before.get(name)}
        self._ran = True
        missed = self.metric is not None and metric_name(self.metric) not in self._validated
        self._old = trainer.callback_metrics.get(self.metric) if missed else None

    def state_dict(self) -> dict[str, Any]:
        return {"validated": {name: value for name, value in self.values.items() if name in self._validated}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.values.update(state_dict["validated"])
        self._validated = set(state_dict["validated"])

    def check(self, trainer: pl.Trainer) -> None:
        """For the choice of the best epoch, whose metric has the name under which the module logs it."""
        if self.metric not in trainer.callback_metrics and _stage(self.metric) != "test":
            refuse_missing(self.metric, trainer, ())

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The last epoch's values of training, which come after its validation."""
        self.values.take(trainer)
        if self._old is not None and trainer.callback_metrics.get(self.metric) is self._old:  # it may be logged after a validation
            say(f"metric={self.metric}: the last validation did not log it, so its value is of an earlier one, of other weights")
        if _stage(self.metric) == "train":
            refuse_missing(self.metric, trainer, self.values)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.values.take(trainer)
        if self._ran or _stage(self.metric) == "test":  # a run that was cut off in its test only tests, and has logged nothing else
            refuse_missing(self.metric, trainer, self.values.names)  # a model that is pruned since its last validation has no value of it
