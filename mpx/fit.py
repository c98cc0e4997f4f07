"""Join the rooms for one run: data, model, precision, sparsity and measurement around a Lightning Trainer."""

import logging
import math
import warnings
from contextlib import suppress
from functools import partial
from typing import Any

import pytorch_lightning as pl
from omegaconf import DictConfig, OmegaConf
from torch import nn

from mpx import fast, sparse
from mpx.data import Data, DataModule, load
from mpx.data.loaders import full_batches
from mpx.errors import Diverged, UserError
from mpx.measure.environment import environment
from mpx.measure.memory import reset_peak
from mpx.models import build
from mpx.models.probe import check_crop
from mpx.module import TrainingModule
from mpx.optim import Schedule, lr_factor, steps_per_epoch, total_steps
from mpx.parts import Parts, build_parts, look_closely
from mpx.precision.modes import remedy
from mpx.precision.switches import float32_matmuls
from mpx.recording import close, fill_record, numerics, speed_and_memory, start_logs
from mpx.run.checkpoint import Best, History, Last
from mpx.run.checkpoint_writer import CheckpointWriter
from mpx.run.folder import Folder
from mpx.run.listening import Listening
from mpx.run.random_state import RandomState
from mpx.training.logging import RunLogger, Scalars
from mpx.training.progress import progress

PASSED = (  # settings that go to the Trainer as they are
    "max_epochs", "max_steps", "devices", "strategy", "accumulate_grad_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "log_every_n_steps", "check_val_every_n_epoch",
    "limit_train_batches", "limit_val_batches", "limit_test_batches",
)  # fmt: skip


def fit(cfg: DictConfig, folder: Folder, record: dict[str, Any], *, trial: str, config: str) -> None:
    """Train, validate and test one setting. Fills `record` (result.json's parts) as far as it gets, also when it raises.

    trial: the setting's name without the seed; TensorBoard averages the seeds of a trial. config: the text of config.yaml.
    """
    _quiet()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    record["environment"] = environment() | record["environment"]
    parts = build_parts(cfg)
    data = load(cfg.data)
    model = _model(cfg, data)
    history = History(folder.resume_from, model, cfg.optimizer.name)
    record["environment"]["resumed_from_steps"] = history.steps
    trainer = _trainer(cfg, folder, parts, data.spec.kind, history)
    datamodule = DataModule(data, cfg.data, cfg.seed)
    batches = full_batches(data.sizes["train"], cfg.data.batch_size, trainer.world_size)
    _check_limits(cfg, data.sizes, trainer.world_size)
    steps = total_steps(cfg.trainer, batches)
    restart_at = sparse.prepare(cfg, parts, model, steps, steps_per_epoch(cfg.trainer, batches), resumed=folder.resume_from is not None)
    schedule = Schedule(lr_factor(cfg.schedule, steps, restart_at), steps)
    if restart_at is not None:
        parts.pruning.on_prune.append(lambda _: schedule.start_phase(restart_at))
    tta = cfg.data.get("tta", "none")  # a choice of images alone
    module = TrainingModule(model, data.spec, cfg.optimizer, schedule, parts.ema, cfg.label_smoothing, tta)
    fed = datamodule.settle(trainer.strategy.root_device)
    choice = fast.decide(cfg, parts, model, data.spec, steps, trainer.world_size).fed(*fed)
    fast.attach(module, choice, parts)
    if parts.pruning is not None:
        parts.pruning.attach(model)
        sparse.check_resumed(parts.pruning, folder.resume_from, history, steps)
    parts.numerics.settle(replayed=choice.cuda_graphs)
    if parts.profile is not None:
        parts.profile.settle(choice.against)
    reset_peak(parts.device)
    with float32_matmuls(parts.precision.mode, emulate=parts.precision.emulate):
        try:
            if trainer.is_global_zero:
                folder.begin(config)
                start_logs(trainer, cfg, record, trial)
            trainer.fit(module, datamodule=datamodule, ckpt_path=folder.resume_from, weights_only=True)
            if (trouble := parts.precision.idle()) is not None:
                raise Diverged(trouble)
            sparse.prune_after_training(parts, trainer, module, datamodule, folder)
            trainer.test(module, datamodule=datamodule, verbose=False)
        except BaseException:
            with suppress(Exception):  # what went wrong matters more than what can no longer be measured
                fill_record(record, module, parts, choice)
            raise
    fill_record(record, module, parts, choice)
    _check_test(module.results, remedy(parts.precision.mode, cfg.optimizer.name))
    if trainer.is_global_zero:
        close(trainer, record, folder, parts)


def _check_test(results: dict[str, float], advice: str) -> None:
    """Raise Diverged where a test result is no number: a perplexity, e to the power of the loss, is infinite from a loss of 710 on."""
    for name, value in results.items():
        if name.startswith("test/") and not math.isfinite(value):
            raise Diverged(f"the {name.replace('/', ' ')} is infinite or NaN. {advice}")


def _model(cfg: DictConfig, data: Data) -> nn.Module:
    """Raises UserError where it cannot take this data."""
    model = build(cfg.model, data.spec)
    if cfg.data.get("crop") is not None:
        check_crop(model, data.spec, cfg.data.crop)
    if not data.padded and hasattr(model, "padded"):
        model.padded = False
    return model


def _check_limits(cfg: DictConfig, sizes: dict[str, int], devices: int) -> None:
    """Raise UserError where validation or test would have no batch; Lightning finds out about the test when training is over.

    sizes: samples of each split.
    """
    for split in ("val", "test"):
        limit, there = cfg.trainer[f"limit_{split}_batches"], math.ceil(sizes[split] / devices / cfg.data.eval_batch_size)
        if isinstance(limit, float) and int(there * limit) == 0:
            raise UserError(
                f"trainer.limit_{split}_batches={limit:g} leaves none of {there} batches. Give a larger share, a number such as 1, "
                f"or a smaller data.eval_batch_size than {cfg.data.eval_batch_size}."
            )


def _quiet() -> None:
    """Lightning's notices about what mpx has decided on purpose."""
    for name in ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (".*does not have many workers.*", ".*is smaller than the logging interval.*", ".*Checkpoint directory .* exists.*"):
        warnings.filterwarnings("ignore", message)
    warnings.filterwarnings("ignore", ".*weights are not part of single contiguous chunk.*")  # PyTorch joins no BF16 weights
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*", FutureWarning)
    warnings.filterwarnings("ignore", ".*callbacks used to create the checkpoint.*")  # of a pruned or averaged run, by another one
    warnings.filterwarnings("ignore", ".*The dirpath has changed.*")  # ckpt_path= continues in a folder of its own


def _trainer(cfg: DictConfig, folder: Folder, parts: Parts, kind: str, history: History) -> pl.Trainer:
    settings = cfg.trainer
    monitor, direction = ("val/loss", "min") if kind == "lm" else ("val/accuracy", "max")
    best = Best(folder.path, monitor, direction)
    if parts.pruning is not None:
        parts.pruning.on_prune += [best.forget, parts.throughput.restart_warmup]
    scalars = Scalars(
        settings.log_every_n_steps,
        per_step=partial(numerics, parts),
        per_epoch=partial(speed_and_memory, parts),
        trouble=parts.precision.trouble,
        advice=remedy(parts.precision.mode, cfg.optimizer.name),
    )
    if parts.pruning is not None and parts.ema is not None:
        parts.pruning.on_prune.append(parts.ema.restart)
    callbacks = [part for part in (parts.pruning, parts.ema) if part is not None]
    callbacks += [
        Listening(),
        RandomState(),
        history,
        parts.first_step,
        parts.numerics,
        parts.throughput,
        *look_closely(cfg, parts, folder.path),
        scalars,
        *progress(settings.progress, parts.throughput),
    ]
    writer = CheckpointWriter()
    callbacks += [best, Last(folder.path, settings.checkpoint_every_n_steps, best, writer)]
    passed = {key: OmegaConf.to_object(settings)[key] for key in PASSED}
    if sparse.nothing_to_train(cfg):
        passed["max_steps"] = 0
    return pl.Trainer(
        **passed | {"accelerator": "gpu" if parts.device.type == "cuda" else "cpu"},
        plugins=[parts.precision, writer],
        callbacks=callbacks,
        logger=RunLogger(folder.path, purge_step=history.steps[-1] + 1 if history.steps else 0),
        default_root_dir=folder.path,
        enable_progress_bar=any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # mpx's loaders shard themselves, without repeating samples
    )
