"""Build one run by four builders, each of whole objects from the ones before:

devices, precision → data and model → steps → measuring and pruning → trainer
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torch import nn

from mpx.acceleration.apply import Acceleration, Choice, apply, say
from mpx.acceleration.decide import decide
from mpx.data import Data, load
from mpx.data.datamodule import DataModule, choose_loader
from mpx.data.lengths import Lengths, lengths_of
from mpx.data.loaders import full_batches
from mpx.data.tasks import TrainingLoss, monitored
from mpx.errors import UserError
from mpx.measure.memory import reset_peak
from mpx.measure.windows import Clock
from mpx.models import build
from mpx.models.probe import check_crop, reads_padding
from mpx.precision.modes import remedy
from mpx.precision.plugin import ModePrecision, build_precision
from mpx.runs.checkpoint import Checkpoints
from mpx.runs.folder import Folder
from mpx.runs.history import History, refuse_other_data, refuse_other_optimizer
from mpx.runs.weights import read_checkpoint
from mpx.sparsity.callback import Pruning
from mpx.sparsity.choose import choose_recipe, plan
from mpx.sparsity.masks import Masks
from mpx.sparsity.recipes import Recipe
from mpx.system.processes import not_finite
from mpx.training.callbacks import Beginning, CompileIfItPays, LastValidation, callbacks
from mpx.training.ema import Ema
from mpx.training.logging import RunLogger
from mpx.training.measuring import Measuring, build_measuring
from mpx.training.module import TrainingModule
from mpx.training.optimizer import Schedule, build_schedule, check_limits, count_steps
from mpx.training.pruning import build_masks, build_pruning, check_resumed, load_dense_weights
from mpx.training.trainer import Devices, build_trainer, choose_devices


@dataclass(frozen=True)
class Run:
    """The objects of one training: of a model that mpx builds, or of a project (mpx/training/project.py)."""

    devices: Devices
    precision: ModePrecision
    datamodule: pl.LightningDataModule | None
    module: pl.LightningModule
    measuring: Measuring
    pruning: Pruning | None
    history: History
    beginning: Beginning
    checkpoints: Checkpoints
    trainer: pl.Trainer
    logger: RunLogger
    advice: str  # what to try if the run has diverged
    results: Callable[[], dict[str, float]]  # the newest value of each metric, in full precision
    acceleration: Acceleration
    choice: Callable[[], Choice]  # how the steps are taken, as was decided last
    # whether there are data for this stage: validation or test
    has: Callable[[str], bool] = lambda stage: True


@dataclass(frozen=True)
class Inputs:
    """What a run trains, from its first step or from a checkpoint."""

    devices: Devices
    precision: ModePrecision
    datamodule: DataModule
    loader: tuple[str, str]  # of its batches, and why
    model: nn.Module
    history: History


@dataclass(frozen=True)
class Steps:
    """How the steps of a run are taken."""

    module: TrainingModule
    acceleration: Acceleration
    choice: Choice
    schedule: Schedule
    recipe: Recipe | None
    masks: Masks | None
    total: int  # optimizer steps of the whole run


def assemble(cfg: DictConfig, folder: Folder, begin: Callable[[pl.Trainer], None]) -> Run:
    """Build the run of `cfg`. Raises UserError for a setting that this machine, the data or the model cannot
    meet.

    begin: called immediately before the first batch.
    """
    inputs = build_inputs(cfg, folder)
    steps = build_steps(cfg, inputs)
    measuring = build_measuring(cfg, folder.path, inputs.precision, steps.acceleration, steps.choice)
    checkpoints = Checkpoints(
        folder.path,
        *monitored(steps.module.spec),
        every_steps=cfg.trainer.checkpoint_every_n_steps,
        every_s=cfg.trainer.save_every_s,
    )
    pruning = _build_pruning(cfg, inputs, steps, measuring, checkpoints)
    if pruning is not None and folder.resume_from is not None:
        check_resumed(pruning, folder.resume_from, inputs.history)
    compiling = build_compiling(steps, measuring, inputs.devices.root)

    advice = remedy(inputs.precision.mode, cfg.optimizer.name)
    beginning = Beginning(begin)
    logger = RunLogger(folder.path, inputs.history.next_step)
    trainer = build_trainer(
        cfg, folder.path, inputs.devices, inputs.precision, logger,
        callbacks(
            cfg, measuring, inputs.precision, inputs.history, beginning, pruning=pruning,
            ema=steps.module.ema,
            compiling=compiling, ends=[LastValidation(), checkpoints], advice=advice,
        ),
    )  # fmt: skip

    return Run(
        inputs.devices, inputs.precision, inputs.datamodule, steps.module, measuring, pruning, inputs.history,
        beginning, checkpoints,
        trainer, logger, advice, results=lambda: steps.module.results,
        acceleration=steps.acceleration,
        choice=lambda: steps.choice if compiling is None else compiling.choice,
    )  # fmt: skip


def build_inputs(cfg: DictConfig, folder: Folder) -> Inputs:
    devices = choose_devices(cfg.trainer)
    precision = build_precision(cfg.precision, devices.root)
    data = load(cfg.data)
    loader = choose_loader(cfg.data.loader, [*data.splits.values()], devices.root, cfg.data.workers)
    check_limits(cfg.trainer, cfg.data.eval_batch_size, data.sizes, devices.count)
    model = build(cfg.model, data.spec)
    check_crop(model, data.spec, cfg.data.get("crop"))
    lengths = build_lengths(cfg.data, data, model)
    datamodule = DataModule(data, cfg.data, cfg.seed, loader[0], lengths)
    checkpoint, path = None, folder.resume_from
    if path is None:
        load_dense_weights(cfg.sparsity, model)
        if (name := not_finite(model)) is not None:  # no loss can be finite
            raise UserError(
                f"model: the weights of {name} are infinite or NaN before the first step. "
                "Correct how they are made or loaded."
            )
    else:
        checkpoint = read_checkpoint(path, model)
        refuse_other_optimizer(path, checkpoint, cfg.optimizer.name)
    history = History(checkpoint, tuple(data.checksums))
    if path is not None and cfg.ckpt_path is None:  # the user may let a checkpoint continue on other data
        refuse_other_data(path, history)
    return Inputs(devices, precision, datamodule, loader, model, history)


def build_lengths(data_cfg: DictConfig, data: Data, model: nn.Module) -> dict[str, Lengths]:
    """The lengths of the batches of texts. A model that reads padding gets all texts in one length, since
    its results would depend on the other texts of a batch.
    """
    wanted = data_cfg.get("lengths", "fixed")
    lengths = lengths_of(data, wanted)
    if wanted == "fixed" or not lengths or not reads_padding(model, data.spec, lengths["train"].allowed[0]):
        return lengths
    if wanted != "auto":
        raise UserError(
            f"data.lengths={list(wanted)} is not for this model, whose results depend on the padding of a "
            "text. Use data.lengths=fixed."
        )
    say("data.lengths=auto: all batches have one length, since the model's results depend on padding")
    return lengths_of(data, "fixed")


def build_steps(cfg: DictConfig, inputs: Inputs) -> Steps:
    model, devices, data = inputs.model, inputs.devices, inputs.datamodule.data
    batches = full_batches(data.sizes["train"], cfg.data.batch_size, devices.count)
    total = count_steps(cfg.trainer, batches)
    recipe = (
        None if cfg.sparsity.pattern == "dense" else choose_recipe(cfg.sparsity, plan(cfg.sparsity, total))
    )
    masks = None if recipe is None else build_masks(cfg.sparsity, model, recipe, devices.root)
    schedule = build_schedule(cfg.schedule, total, recipe)

    of_texts = inputs.datamodule.lengths.get("train")
    lengths = 1 if of_texts is None else len(of_texts.allowed)
    choice = decide(cfg, inputs.precision, model, data.spec, total, lengths).with_loader(*inputs.loader)
    loss = TrainingLoss(model, cfg.label_smoothing, data.spec.task)
    acceleration = apply(
        choice,
        model,
        loss.of_batch,
        ranks=devices.count,
        version=lambda: None if masks is None else masks.version,  # a pruning replaces what a step reads
        searched=lambda: reset_peak(devices.root),
    )
    ema = None if cfg.trainer.ema_decay is None else Ema(cfg.trainer.ema_decay, model, masks)
    tta = cfg.data.get("tta", "none")  # only images have it
    module = TrainingModule(
        loss, data.spec, cfg.optimizer, schedule, inputs.precision, acceleration, ema, tta
    )
    return Steps(module, acceleration, choice, schedule, recipe, masks, total)


def _build_pruning(
    cfg: DictConfig, inputs: Inputs, steps: Steps, measuring: Measuring, checkpoints: Checkpoints
) -> Pruning | None:
    """After it prunes, it resets what was of the dense model: best checkpoint, results, speed, averages."""
    if steps.masks is None or steps.recipe is None:
        return None
    module, recipe, schedule = steps.module, steps.recipe, steps.schedule
    after = [checkpoints.forget, module.forget_results, measuring.throughput.restart_warmup]
    after += [part.restart for part in (module.ema, measuring.profile) if part is not None]
    if recipe.restarts_schedule:
        after.append(lambda trainer: schedule.start_phase(recipe.plan.start))
    return build_pruning(
        cfg.sparsity, cfg.seed, steps.masks, recipe, measuring.throughput, module, inputs.datamodule, after,
        cfg.trainer.progress,
        lambda: steps.acceleration.replayed,
    )  # fmt: skip


def build_compiling(steps: Steps, measuring: Measuring, device: torch.device) -> CompileIfItPays | None:
    """Where the steps are compiled in the midst of the run, speed and memory are measured again."""
    if not steps.choice.undecided:
        return None
    after = [] if measuring.profile is None else [measuring.profile.restart]
    after += [lambda trainer: measuring.throughput.start_over(), lambda trainer: reset_peak(device)]
    return CompileIfItPays(steps.choice, steps.acceleration, Clock(device), steps.total, after)
