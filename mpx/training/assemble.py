"""Build one run. Each object is built whole, from the ones before it:

devices, precision → data → model → steps → acceleration → module → measuring → pruning → trainer
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from torch import nn

from mpx.acceleration.apply import Acceleration, apply
from mpx.acceleration.choice import Choice
from mpx.acceleration.decide import decide, notebook_of
from mpx.acceleration.payoff import Notebook
from mpx.data import DataModule, load
from mpx.data.datamodule import choose_loader
from mpx.data.loaders import full_batches
from mpx.environment_variables import measures_beside_others
from mpx.errors import UserError
from mpx.measure.memory import reset_peak
from mpx.measure.throughput import Throughput
from mpx.models import build
from mpx.models.probe import check_crop
from mpx.precision.choose import build_precision
from mpx.precision.modes import remedy
from mpx.precision.plugin import ModePrecision
from mpx.runs.beginning import Beginning
from mpx.runs.checkpoint import Best
from mpx.runs.folder import Folder
from mpx.runs.history import Continued, History
from mpx.runs.trained_as import setting_of
from mpx.sparsity.callback import Pruning
from mpx.sparsity.masks import Masks
from mpx.sparsity.recipes import Recipe
from mpx.training.compiling import CompileIfItPays
from mpx.training.devices import Devices, choose_devices
from mpx.training.ema import Ema
from mpx.training.loss import TrainingLoss
from mpx.training.measuring import Measuring, build_measuring
from mpx.training.module import TrainingModule
from mpx.training.pruning import build_masks, build_pruning, build_recipe, check_resumed, load_dense_weights
from mpx.training.schedule import Schedule, build_schedule, check_limits, count_steps
from mpx.training.tasks import monitored
from mpx.training.trainer import build_trainer


@dataclass(frozen=True)
class Run:
    """The objects of one training: of a model that mpx builds, or of a project (mpx/training/project.py)."""

    devices: Devices
    precision: ModePrecision
    datamodule: pl.LightningDataModule | None
    module: pl.LightningModule
    measuring: Measuring
    pruning: Pruning | None
    history: History | Continued  # Continued of a project
    beginning: Beginning
    trainer: pl.Trainer
    advice: str  # what to try if the run has diverged
    results: Callable[[], dict[str, float]]  # the newest value of each metric, in full precision
    chosen: Callable[[], dict[str, Any]]  # how the steps ran, for the record
    has: Callable[[str], bool] = lambda stage: True  # whether there are data for this stage: validation or test
    after_training: Callable[[], None] = lambda: None  # before the test
    release: Callable[[], None] = lambda: None  # frees what a run that failed would hold


def assemble(
    cfg: DictConfig, folder: Folder, begin: Callable[[pl.Trainer], None], stopper: Callable[[Throughput], Callback] | None = None
) -> Run:
    """Build the run of `cfg`. Raises UserError for a setting that this machine, the data or the model cannot meet.

    begin: called immediately before the first batch. stopper: for a run that is only timed, and is pruned before its first step: makes the
    callback that stops it. None: the run trains to its end and is saved.
    """
    devices = choose_devices(cfg.trainer)
    precision = build_precision(cfg.precision, devices.root)
    advice = remedy(precision.mode, cfg.optimizer.name)
    data = load(cfg.data)
    loader, why = choose_loader(cfg.data.loader, data.train.nbytes, devices.root)
    datamodule = DataModule(data, cfg.data, cfg.seed, loader)
    model = build(cfg.model, data.spec)
    check_crop(model, data.spec, cfg.data.get("crop"))
    history = _history(cfg, folder, model, data.checksums)
    if folder.resume_from is None:  # otherwise the weights come from the checkpoint
        load_dense_weights(cfg.sparsity, model)
        refuse_not_finite(model)

    batches = full_batches(data.sizes["train"], cfg.data.batch_size, devices.count)
    check_limits(cfg.trainer, cfg.data.eval_batch_size, data.sizes, devices.count)
    steps, of_epoch = count_steps(cfg.trainer, batches)
    recipe = build_recipe(cfg.sparsity, steps, of_epoch, at_once=stopper is not None)
    masks = None if recipe is None else build_masks(cfg.sparsity, model, recipe, devices.root)
    schedule = build_schedule(cfg.schedule, steps, recipe)

    notebook = notebook_of(cfg, precision, model, data.spec, devices.count)
    done = history.steps[-1] if history.steps else 0
    choice = decide(cfg, precision, model, data.spec, steps, done=done, notebook=notebook).with_loader(loader, why)
    loss = TrainingLoss(model, cfg.label_smoothing, data.spec.task)
    acceleration = apply(
        choice,
        model,
        loss.of_batch,
        ranks=devices.count,
        version=lambda: None if masks is None else masks.version,
        searched=lambda: reset_peak(devices.root),
    )

    ema = None if cfg.trainer.ema_decay is None else Ema(cfg.trainer.ema_decay, masks)
    tta = cfg.data.get("tta", "none")  # only images have it
    module = TrainingModule(loss, data.spec, cfg.optimizer, schedule, acceleration, ema, tta)
    measuring = build_measuring(cfg, folder.path, precision, acceleration, choice)
    best = Best(folder.path, *monitored(data.spec))
    compiling = None if choice.undecided is None else build_compiling(choice, acceleration, notebook, measuring, devices.root)

    pruning = None
    if masks is not None:
        pruning = _pruning(cfg, masks, recipe, schedule, module, measuring, best, acceleration)
        check_resumed(pruning, folder.resume_from, history, steps)

    beginning = Beginning(begin)
    stop = None if stopper is None else stopper(measuring.throughput)
    trainer = build_trainer(
        cfg, folder.path, devices, precision, history, best, measuring, pruning, ema, beginning, stop, compiling, advice=advice
    )

    def chosen() -> dict[str, Any]:
        return (choice if compiling is None else compiling.choice).record() | acceleration.record()

    return Run(
        devices, precision, datamodule, module, measuring, pruning, history, beginning, trainer, advice,
        results=lambda: module.results, chosen=chosen, release=acceleration.release,
    )  # fmt: skip


def _history(cfg: DictConfig, folder: Folder, model: nn.Module, checksums: list[int]) -> History:
    given = None if cfg.ckpt_path is None else Path(cfg.ckpt_path).resolve()
    by_user = folder.resume_from is not None and folder.resume_from.resolve() == given  # named on the command line: other data are allowed
    return History(folder.resume_from, model, cfg.optimizer.name, setting_of(cfg), checksums, other_data=by_user)


def _pruning(
    cfg: DictConfig, masks: Masks, recipe: Recipe, schedule: Schedule, module: TrainingModule, measuring: Measuring, best: Best,
    acceleration: Acceleration,
) -> Pruning:  # fmt: skip
    """The pruning, and what it restarts: results and speed of the dense model no longer count."""
    after = [best.forget, module.forget_results, measuring.throughput.restart_warmup]
    after += [part.restart for part in (module.ema, measuring.profile) if part is not None]
    if recipe.restarts_schedule:
        after.append(lambda trainer: schedule.start_phase(recipe.plan.start))
    return build_pruning(
        cfg.sparsity, cfg.seed, masks, recipe, measuring.throughput, module.ema, after, cfg.trainer.progress,
        lambda: acceleration.counts()[0],
    )  # fmt: skip


def refuse_not_finite(model: nn.Module) -> None:
    """Raise UserError for weights with which no loss can be finite."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise UserError(f"model: the weights of {name} are infinite or NaN before the first step. Correct how they are made or loaded.")


def build_compiling(
    choice: Choice, acceleration: Acceleration, notebook: Notebook | None, measuring: Measuring, device: torch.device
) -> CompileIfItPays:
    """The callback that decides in the first steps whether to compile the rest. After that, speed and memory are measured again."""
    after = [] if measuring.profile is None else [measuring.profile.restart]
    after += [lambda trainer: measuring.throughput.start_over(), lambda trainer: reset_peak(device)]
    return CompileIfItPays(
        choice, acceleration, notebook, lambda: measures_beside_others() or measuring.exclusivity.verdict()[0] is False, after
    )
