"""Build a run of the user's own LightningModule and LightningDataModule: a Trainer with mpx's precision,
sparsity and record.

How such a run continues is up to Lightning and to the project.
"""

from collections.abc import Callable, Container
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.model_helpers import is_overridden

from mpx.acceleration.apply import Acceleration, Choice
from mpx.acceleration.compiled import prepare_compiler
from mpx.errors import UserError
from mpx.precision.modes import remedy
from mpx.precision.plugin import build_precision
from mpx.record.lightning_record import Newest
from mpx.runs.checkpoint import Checkpoints
from mpx.runs.folder import Folder
from mpx.runs.history import History
from mpx.runs.result import metric_name, not_logged, stage_of
from mpx.runs.weights import continuing
from mpx.settings import target
from mpx.settings.check import falls
from mpx.settings.sparsity import RECIPES_OF
from mpx.settings.values import as_dict
from mpx.sparsity.lightning_sparsity import Sparsity, arguments
from mpx.training.assemble import Run
from mpx.training.callbacks import Beginning, LastValidation, callbacks
from mpx.training.logging import RunLogger
from mpx.training.measuring import build_measuring
from mpx.training.pruning import load_dense_weights
from mpx.training.trainer import build_trainer, choose_devices


def assemble_project(cfg: DictConfig, folder: Folder, begin: Callable[[pl.Trainer], None]) -> Run:
    """Build the run of `cfg`. Raises UserError for a setting that this machine or the module cannot meet.

    begin: called immediately before the first batch.
    """
    devices = choose_devices(cfg.trainer)
    precision = build_precision(cfg.precision, devices.root, project=True)
    prepare_compiler()  # the module may compile itself
    module = _build(cfg.module, "module", pl.LightningModule)
    datamodule = build_datamodule(cfg.datamodule, module)
    _check_metric(cfg.metric, module, datamodule)
    if folder.resume_from is None:  # otherwise the weights come from the checkpoint
        load_dense_weights(cfg.sparsity, module)
        checkpoint = None
    else:
        # it may hold any object of the project, whose code runs in any case
        with continuing(folder.resume_from):
            checkpoint = torch.load(folder.resume_from, map_location="meta", weights_only=False)
    history, logged, choice = (
        History(checkpoint),
        Logged(cfg.metric),
        _choice(cfg.trainer, module),
    )
    acceleration = Acceleration()
    measuring = build_measuring(cfg, folder.path, precision, acceleration, choice, project=True)
    validated = (
        cfg.metric if offers("validation", module, datamodule) and _stage(cfg.metric) != "test" else None
    )
    checkpoints = Checkpoints(
        folder.path, validated, cfg.metric_goal, every_steps=cfg.trainer.checkpoint_every_n_steps,
        every_s=cfg.trainer.save_every_s,
    )  # fmt: skip
    pruning = None
    if cfg.sparsity.pattern != "dense":
        restart = [] if measuring.profile is None else [measuring.profile.restart]
        pruning = build_sparsity(cfg.sparsity, [checkpoints.forget, logged.values.forget, *restart])
    beginning, advice = Beginning(begin), remedy(precision.mode, None)
    logger = RunLogger(folder.path, history.next_step)
    trainer = build_trainer(
        cfg, folder.path, devices, precision, logger,
        callbacks(
            cfg, measuring, precision, history, beginning, pruning=pruning, ema=None, compiling=None,
            advice=advice,
            ends=[AsksForMetric(), logged, LastValidation(), checkpoints], project=True,
        ),
        project=True, unused_parameters=not module.automatic_optimization,
    )  # fmt: skip
    return Run(
        devices, precision, datamodule, module, measuring, pruning, history, beginning, checkpoints,
        trainer, logger,
        advice, results=lambda: logged.values, acceleration=acceleration, choice=lambda: choice,
        has=lambda stage: offers(stage, module, datamodule),
    )  # fmt: skip


def build_datamodule(datamodule: DictConfig, module: pl.LightningModule) -> pl.LightningDataModule | None:
    """None where the module has its loaders itself. Raises UserError where nothing has data."""
    if datamodule["_target_"] is not None:
        return _build(datamodule, "datamodule", pl.LightningDataModule)
    if not is_overridden("train_dataloader", module):
        raise UserError(
            f"datamodule._target_ is not set, and {type(module).__name__} has no train_dataloader. Name a "
            "LightningDataModule, as "
            "datamodule._target_=package.module.Class."
        )
    return None


def _build(settings: DictConfig, part: str, kind: type) -> Any:
    """Raises UserError for a target or arguments that make none of this kind. Lightning itself says which of
    its methods are missing.
    """
    given = as_dict(settings)
    made = target.build(f"{part}._target_", given, part)
    path = given.pop("_target_")
    if not isinstance(made, kind):
        raise UserError(
            f"{part}._target_={path} made a {type(made).__name__}; it must make a {kind.__name__}."
        )
    if given and not is_overridden("__init__", made, kind):  # which takes any argument, and drops it
        raise UserError(
            f"{part}.{min(given)} is not an argument of {path}, which has no __init__ of its "
            "own. Leave it out."
        )
    return made


def offers(stage: str, module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> bool:
    """Whether the project has a step and a loader for this stage: validation or test."""
    loader = "val_dataloader" if stage == "validation" else f"{stage}_dataloader"
    # beside which Lightning takes no loader of the module's
    source = module if datamodule is None else datamodule
    return is_overridden(f"{stage}_step", module) and is_overridden(loader, source)


def _choice(trainer: DictConfig, module: pl.LightningModule) -> Choice:
    """The module itself says how its steps run, but for cuDNN's search and channels_last."""
    benchmark, channels_last = trainer.benchmark is True, trainer.channels_last is True
    torch.backends.cudnn.benchmark = benchmark
    if channels_last:
        module.to(memory_format=torch.channels_last)
    against = dict.fromkeys(("cuda_graphs", "compile"), "a module's own training_step")
    why = against | {
        key: f"trainer.{key}={str(trainer[key]).lower()}" for key in ("benchmark", "channels_last")
    }
    return Choice(False, "off", False, benchmark, channels_last, why, against=against)


def build_sparsity(sparsity: DictConfig, after: list[Callable[[pl.Trainer], None]]) -> Sparsity:
    """after: called right after the pruning."""
    settings, usual = as_dict(sparsity), arguments(sparsity.pattern)
    if sparsity.dense_ckpt is not None:
        settings |= {"start": 0.0, "start_step": None}
    # mpx.Sparsity refuses what its recipe ignores
    read = [name for name in usual if sparsity.recipe in RECIPES_OF.get(name, (sparsity.recipe,))]
    return Sparsity(
        sparsity.pattern,
        after=after,
        **{name: settings[name] for name in read if settings[name] != usual[name]},
    )


def _check_metric(
    metric: str | None, module: pl.LightningModule, datamodule: pl.LightningDataModule | None
) -> None:
    stage = {"val": "validation", "test": "test"}.get(_stage(metric) or "")
    if stage is not None and not offers(stage, module, datamodule):
        raise UserError(
            f"metric={metric}: {type(module).__name__} has no {stage}_step, or its data no loader for it. "
            "Name a metric of another stage, or leave metric out."
        )


def _stage(metric: str | None) -> str | None:
    return None if metric is None else stage_of(metric)


class AsksForMetric(Callback):
    """Ends a run without `metric=` after Lightning's sanity check, and lists what its validation logs."""

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        names = sorted(trainer.callback_metrics)
        if names:
            words = (f"metric={name}{' metric_goal=min' if falls(name) else ''}" for name in names)
            raise UserError(
                "metric is not set, and mpx.compare needs a value by which to compare runs. The validation "
                f"logs {', '.join(words)}. Add one of these; where lower is better, with metric_goal=min."
            )


class Logged(Callback):
    """Keeps the newest value of everything that the module logs. metric: must be among it, unless None."""

    def __init__(self, metric: str | None):
        self.metric = metric
        self.values = Newest()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning's own stands for None
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):
            raise UserError(
                f"module: configure_optimizers of {type(pl_module).__name__} returns no optimizer, so that "
                "mpx sees no step. "
                "Return those that it steps."
            )

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.values.take(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The last epoch's values of training, which come after its validation."""
        self.values.take(trainer)
        if _stage(self.metric) == "train":
            self._check(trainer, self.values)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.values.take(trainer)
        if _stage(self.metric) == "test":
            self._check(trainer, self.values.names)

    def _check(self, trainer: pl.Trainer, logged: Container[str]) -> None:
        if metric_name(str(self.metric)) not in logged:
            raise not_logged(str(self.metric), trainer)
