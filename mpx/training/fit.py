"""One run: build it, train, prune if the recipe prunes after training, test, and fill in the record."""

import logging
import math
import warnings
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from mpx.data.datamodule import DataModule
from mpx.data.splits import samples_line
from mpx.errors import Diverged, UserError, first_line
from mpx.measure.environment import environment
from mpx.measure.memory import out_of_memory, reset_host_peak, reset_peak
from mpx.precision.switches import float32_matmuls
from mpx.runs.folder import CHECKPOINTS, Folder
from mpx.runs.inputs import refuse_others
from mpx.runs.weights import continuing
from mpx.settings.project import is_project
from mpx.settings.sparsity import nothing_to_train
from mpx.system.machine import keep_within_quota
from mpx.system.processes import not_finite
from mpx.training.assemble import Run, assemble
from mpx.training.logging import logger_of
from mpx.training.module import TrainingModule
from mpx.training.record import close, fill_record, start_logs
from mpx.training.trainer import choose_devices

EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*is smaller than the logging interval.*",
    "No positive samples found in target.*",  # of a rare label, in few samples
    "Average precision score for one or more classes was `nan`.*",
    ".*weights are not part of single contiguous chunk.*",  # PyTorch joins no BF16 weights
    ".*.srun. command is available.*",  # a machine with Slurm need not use it
    ".*treespec, LeafSpec.*",
    ".*callbacks used to create the checkpoint.*",  # a plain run may continue one with masks or averages
)


def fit(cfg: DictConfig, folder: Folder, record: dict[str, Any], *, trial: str, config: str) -> None:
    """Train, validate and test one setting. Fills in `record`, the content of result.json, as far as it gets,
    also when it raises.

    trial: the setting's name without the seed; TensorBoard averages the seeds of a trial. config: the text of
    config.yaml.
    Raises Diverged for a loss or result that is not finite, and UserError for a setting that cannot be met.
    """
    quiet()
    _prepare(cfg, record)
    run = _assemble(cfg, folder, record, trial, config)
    _record_and_check_origin(record, run, cfg, folder)
    reset_peak(run.devices.root)
    with float32_matmuls(run.precision.mode, emulate=run.precision.emulate):
        try:
            _train(run, cfg, folder)
            _prune_after_training(run)
            if run.has("test"):
                run.trainer.test(run.module, datamodule=run.datamodule, verbose=False)
        except BaseException:
            with suppress(Exception):  # an error while measuring must not hide the first one
                fill_record(record, run, together=False)
            with suppress(Exception):
                run.acceleration.release()
            raise
    fill_record(record, run)
    _check_finite(run, record.get("metric"))
    if run.trainer.is_global_zero:
        close(record, folder, run)


def _prepare(cfg: DictConfig, record: dict[str, Any]) -> None:
    reset_host_peak()
    keep_within_quota(choose_devices(cfg.trainer).count // cfg.trainer.num_nodes)
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    record["environment"] = environment(cfg.trainer.devices) | record["environment"]


def _assemble(cfg: DictConfig, folder: Folder, record: dict[str, Any], trial: str, config: str) -> Run:
    """Build the run, which writes into its folder from the first batch on."""

    def begin(trainer: pl.Trainer) -> None:
        if trainer.is_global_zero:
            also = logger_of(cfg, folder.path, trial)
            folder.begin(config)
            # of several processes, for which Lightning has lowered it
            record["environment"]["threads"] = torch.get_num_threads()
            run.logger.begin(also, record["setting"])
            start_logs(trainer, cfg, record, trial)
            _print_start(cfg, folder, run)

    if is_project(cfg):
        from mpx.training.project import assemble_project  # with what only a project needs

        run = assemble_project(cfg, folder, begin)
    else:
        run = assemble(cfg, folder, begin)
    if isinstance(run.datamodule, DataModule):
        record["config"]["data"] |= run.datamodule.data.settings
    return run


def _record_and_check_origin(record: dict[str, Any], run: Run, cfg: DictConfig, folder: Folder) -> None:
    """Record what the run continues and, of data that a user's function makes, a hash. Raises UserError for
    other data of the same name.
    """
    record["environment"]["resumed_from_steps"] = run.history.steps
    if not is_project(cfg) and cfg.data.get("family") == "custom":
        record["data"]["contents"] = "-".join(f"{part:08x}" for part in run.history.data)
        if folder.resume_from is None and not folder.replaces:
            refuse_others(folder.path.parent, cfg.data, record["data"]["contents"])


def _print_start(cfg: DictConfig, folder: Folder, run: Run) -> None:
    if isinstance(run.datamodule, DataModule):
        batches = int(run.trainer.num_training_batches)
        print(samples_line(run.datamodule.data, cfg.data.batch_size * run.trainer.world_size, batches))
    if not is_project(cfg):
        train, *others = run.history.data
        if same := [
            name for name, checksum in zip(("validation", "test"), others, strict=True) if checksum == train
        ]:
            print(
                f"the {' and '.join(same)} data are the train data: the results say nothing about new "
                "samples",
                flush=True,
            )
        if nothing_to_train(cfg.sparsity):
            print("nothing is trained: the checkpoint is pruned", flush=True)
    if folder.resume_from is not None:
        doubt = "" if cfg.ckpt_path is None else ", whose setting may be another one"
        print(f"continuing after step {run.history.steps[-1]} of {folder.resume_from}{doubt}", flush=True)
    elif cfg.if_exists == "resume":
        print(
            "if_exists=resume: this setting has no checkpoint to continue from, so it begins anew", flush=True
        )


def _train(run: Run, cfg: DictConfig, folder: Folder) -> None:
    """Raises UserError for a checkpoint that a part of the run cannot continue from."""
    try:
        run.trainer.fit(
            run.module,
            datamodule=run.datamodule,
            ckpt_path=folder.resume_from,
            weights_only=not is_project(cfg),
        )
    except MisconfigurationException as error:
        if run.beginning.begun:  # a mistake in the module
            raise
        raise UserError(first_line(error)) from error  # a setting of the Trainer that it finds impossible
    except Exception as error:
        of_the_machine = isinstance(error, OSError) or out_of_memory(error)
        if run.beginning.begun or folder.resume_from is None or of_the_machine:
            raise
        with continuing(folder.resume_from):
            raise
    if not run.beginning.begun:
        _begin_without_a_step(run, cfg, folder)
    if (trouble := run.precision.idle()) is not None:
        raise Diverged(trouble)


def _begin_without_a_step(run: Run, cfg: DictConfig, folder: Folder) -> None:
    """Begin a run that has no step left to train: it ended during its test, or it only prunes a checkpoint.
    A checkpoint from elsewhere may be of another setting.
    """
    trainer, path = run.trainer, folder.resume_from
    if path is None and not nothing_to_train(cfg.sparsity):
        raise UserError(
            "the data for training have no batch, so that nothing is trained. Give them more "
            "samples, or a smaller batch size."
        )
    if path is not None and path.resolve().parent != (folder.path / CHECKPOINTS).resolve():
        raise UserError(
            f"ckpt_path={path} has trained for {run.history.steps[-1]} steps, which leaves this run none. "
            "Raise trainer.max_epochs or trainer.max_steps. To prune a trained model, use "
            "sparsity.dense_ckpt in place of ckpt_path."
        )
    run.beginning.ensure_begun(trainer)
    # a project's checkpoint does not hold what the module logged
    if path is not None and is_project(cfg) and run.has("validation"):
        trainer.validate(run.module, datamodule=run.datamodule, verbose=False)


def _prune_after_training(run: Run) -> None:
    """If the recipe has no fine-tuning. Both checkpoints then hold the pruned model."""
    pruning, trainer, module = run.pruning, run.trainer, run.module
    if pruning is None:
        return
    pruning.make_ready(trainer, module)
    if not pruning.recipe.after_training:
        return
    if not pruning.masks.active:  # else the resumed checkpoint is pruned
        module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
        pruning.prune_now(trainer)
        run.checkpoints.save_both(trainer)
    if run.has("validation"):
        trainer.validate(module, datamodule=run.datamodule, verbose=False)


def _check_finite(run: Run, metric: dict[str, str] | None) -> None:
    """Raise Diverged for a test result, a project's metric or a weight that is not finite.

    A perplexity, e to the power of the loss, is infinite above a loss of 710. The loss does not see all
    weights: a filter of 3 × 3 with stride 2 reads an image of one pixel with its middle, and in BF16 on a CPU
    oneDNN leaves the gradient of the rest unwritten (PyTorch 2.14).
    """
    for name, value in run.results().items():
        if (name.startswith("test/") or (metric and name == metric["name"])) and not math.isfinite(value):
            raise Diverged(f"the {name.replace('/', ' ')} is infinite or NaN. {run.advice}")
    # a project may have weights that it never uses
    weight = not_finite(run.module.model) if isinstance(run.module, TrainingModule) else None
    if weight is not None:
        raise Diverged(f"the weights of {weight} are infinite or NaN after the training. {run.advice}")


LOGGERS = ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch")


def quiet() -> None:
    """Silence notices of Lightning and torchmetrics about what mpx does on purpose."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
