"""Join the rooms for one run: data, model, precision, sparsity and measurement around a Lightning Trainer."""

import logging
import math
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf

from mpx.data import DataModule, load
from mpx.errors import Diverged, UserError
from mpx.measure.devices import exclusive
from mpx.measure.environment import environment
from mpx.measure.first_step import FirstStep
from mpx.measure.flops import count_flops
from mpx.measure.memory import peak_memory, reset_peak
from mpx.measure.throughput import Throughput
from mpx.models import build
from mpx.module import TrainingModule
from mpx.optim import lr_factor, total_steps
from mpx.precision.modes import MODES, emulated, float32_matmuls
from mpx.precision.observe import Observe
from mpx.precision.plugin import ModePrecision
from mpx.report import tensorboard
from mpx.report.progress import progress
from mpx.report.scalars import RunLogger, Scalars
from mpx.report.tables import print_run
from mpx.run.checkpoint import Best, History, Last
from mpx.run.folder import Folder
from mpx.run.random_state import RandomState
from mpx.sparsity.recipe import Pruning, prune_step

PASSED = (  # settings that go to the Trainer as they are
    "max_epochs", "max_steps", "devices", "strategy", "accumulate_grad_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "log_every_n_steps", "check_val_every_n_epoch",
    "limit_train_batches", "limit_val_batches", "limit_test_batches",
)  # fmt: skip
DENSE = {"pattern": "dense", "recipe": None, "verified": None, "density": None, "pruned_share": 0.0, "kept_magnitude": None, "layers": []}
NO_PEAK = "no table of peak rates yet"
NOT_MEASURED = "gradients are not inspected yet"


@dataclass
class Parts:
    """What a run is made of."""

    device: torch.device
    precision: ModePrecision
    throughput: Throughput
    first_step: FirstStep
    observed: Observe
    flops: Any
    pruning: Pruning | None


def fit(cfg: DictConfig, folder: Folder, record: dict[str, Any], *, trial: str) -> None:
    """Train, validate and test one setting. Fills `record` (result.json's parts) as far as it gets, also when it raises.

    trial: the setting's name without the seed; TensorBoard averages the seeds of a trial.
    """
    _quiet()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    record["environment"] = environment() | record["environment"]
    device = _device(cfg)
    parts = _parts(cfg, device)
    data = load(cfg.data)
    model = build(cfg.model, data.spec)
    history = History(folder.resume_from, model)
    record["environment"]["resumed_from_steps"] = history.steps
    trainer = _trainer(cfg, folder, parts, data.spec.kind, history)
    datamodule = DataModule(data, cfg.data, cfg.seed)
    steps = total_steps(cfg.trainer, data.sizes["train"] // trainer.world_size // cfg.data.batch_size)
    if parts.pruning is not None:
        parts.pruning.start_step = prune_step(cfg.sparsity.start, steps)
    factor = lr_factor(cfg.schedule, steps, restart_at=parts.pruning.start_step if parts.pruning is not None else None)
    module = TrainingModule(model, data.spec, cfg.optimizer, factor)
    reset_peak(device)
    with float32_matmuls(parts.precision.mode, emulate=parts.precision.emulate):
        try:
            if trainer.is_global_zero:
                _start_logs(trainer, cfg, record, trial)
            trainer.fit(module, datamodule=datamodule, ckpt_path=folder.resume_from, weights_only=True)
            trainer.test(module, datamodule=datamodule, verbose=False)
        except BaseException:
            with suppress(Exception):  # what went wrong matters more than what can no longer be measured
                _fill(record, module, parts)
            raise
    _fill(record, module, parts)
    if not math.isfinite(module.results["test/loss"]):
        raise Diverged(
            "the test loss is infinite or NaN. Try a lower optimizer.lr, or precision=fp32 to see whether the format is at fault."
        )
    if trainer.is_global_zero:
        _close(trainer, record, folder, parts)


def _quiet() -> None:
    """Lightning's notices about what mpx has decided on purpose."""
    for name in ("pytorch_lightning", "lightning", "lightning_fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (".*does not have many workers.*", ".*is smaller than the logging interval.*", ".*Checkpoint directory .* exists.*"):
        warnings.filterwarnings("ignore", message)
    warnings.filterwarnings("ignore", ".*lr_scheduler.step.*before.*optimizer.step.*")  # the first step was skipped by the scaler
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*", FutureWarning)
    warnings.filterwarnings("ignore", ".*The dirpath has changed.*")  # ckpt_path= continues in a folder of its own


def _device(cfg: DictConfig) -> torch.device:
    wish, gpus = cfg.trainer.accelerator, torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wish == "gpu" and not gpus:
        raise UserError(
            "trainer.accelerator=gpu: no CUDA device is visible here. Use trainer.accelerator=cpu or auto, or check nvidia-smi."
        )
    device = torch.device("cuda" if gpus and wish != "cpu" else "cpu")
    asked = cfg.trainer.devices
    most = asked if isinstance(asked, int) else len(asked) if not isinstance(asked, str) else 1
    if device.type == "cuda" and most > gpus:
        raise UserError(f"trainer.devices={asked}: this machine has {gpus} GPUs. Lower trainer.devices.")
    return device


def _parts(cfg: DictConfig, device: torch.device) -> Parts:
    mode = MODES[cfg.precision.mode]
    emulate = emulated(mode, device, cfg.precision.emulate)
    scale = OmegaConf.to_container(cfg.precision.loss_scale) if "loss_scale" in cfg.precision else None
    observed, flops = Observe(mode, emulate=emulate), count_flops()
    throughput = Throughput(cfg.trainer.warmup_steps)
    pruning = None
    if cfg.sparsity.pattern != "dense":
        pruning = Pruning(shape_rule=cfg.sparsity.shape_rule, skip=tuple(cfg.sparsity.skip))
    precision = ModePrecision(mode, device, emulate=emulate, loss_scale=scale)
    return Parts(device, precision, throughput, FirstStep(flops, observed), observed, flops, pruning)


def _trainer(cfg: DictConfig, folder: Folder, parts: Parts, kind: str, history: History) -> pl.Trainer:
    settings = cfg.trainer
    monitor, direction = ("val/loss", "min") if kind == "lm" else ("val/accuracy", "max")
    best = Best(folder.path, monitor, direction)
    if parts.pruning is not None:
        parts.pruning.on_prune += [best.forget, parts.throughput.restart_warmup]
    scalars = Scalars(settings.log_every_n_steps, per_step=partial(_numerics, parts), per_epoch=partial(_speed_and_memory, parts))
    callbacks = [parts.pruning] if parts.pruning is not None else []
    callbacks += [RandomState(), history, parts.first_step, parts.throughput, scalars, *progress(settings.progress, parts.throughput)]
    callbacks += [best, Last(folder.path, settings.checkpoint_every_n_steps)]
    passed = {key: OmegaConf.to_object(settings)[key] for key in PASSED}
    return pl.Trainer(
        **passed | {"accelerator": "gpu" if parts.device.type == "cuda" else "cpu"},
        plugins=[parts.precision],
        callbacks=callbacks,
        logger=RunLogger(folder.path, purge_step=history.steps[-1] + 1 if history.steps else None),
        default_root_dir=folder.path,
        enable_progress_bar=any(isinstance(callback, pl.callbacks.ProgressBar) for callback in callbacks),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # mpx's loaders shard themselves, without repeating samples
    )


def _numerics(parts: Parts) -> dict[str, float | None]:
    precision = parts.precision
    if precision.scaler is None:
        return {}
    return {"numerics/loss_scale": precision.scaler.get_scale(), "numerics/skipped_steps": precision.skipped}


def _speed_and_memory(parts: Parts) -> dict[str, float | None]:
    memory = peak_memory(parts.device)
    kept = ("peak_allocated_gib", "peak_reserved_gib", "peak_rss_gib")
    return {"speed/train_samples_per_s": parts.throughput.samples_per_s} | {f"memory/{key}": memory[key] for key in kept}


def _start_logs(trainer: pl.Trainer, cfg: DictConfig, record: dict[str, Any], trial: str) -> None:
    setting = record["setting"]
    hparams = {key: setting[key] for key in ("model", "data", "precision", "sparsity", "seed")}
    hparams |= {"optimizer": cfg.optimizer.name, "lr": cfg.optimizer.lr, "batch_size": cfg.data.batch_size}
    writer = trainer.logger.experiment
    tensorboard.write_hparams(writer, hparams, trial)
    tensorboard.write_layout(writer)
    tensorboard.write_text(writer, OmegaConf.to_yaml(cfg, resolve=True), record["environment"])


def _fill(record: dict[str, Any], module: TrainingModule, parts: Parts) -> None:
    """The parts of result.json that are known once training has begun, however it ended."""
    record["metrics"] = module.results
    flops = parts.flops.get_total_flops() / parts.first_step.samples if parts.first_step.samples else None
    alone, reason = exclusive(parts.device)
    record["speed"] = parts.throughput.record(flops) | {"mfu": None, "mfu_reason": NO_PEAK, "exclusive": alone, "exclusive_reason": reason}
    record["memory"] = peak_memory(parts.device)
    mode = parts.precision.mode
    record["precision"] = {
        "mode": mode.name,
        "emulated": parts.precision.emulate,
        "formats": mode.formats,
        "observed": parts.observed.counts(),
    }
    record["precision"] |= parts.precision.record() | {
        "gradient_underflow_fraction": None,
        "gradient_underflow_fraction_reason": NOT_MEASURED,
    }
    record["sparsity"] = dict(DENSE) if parts.pruning is None or parts.pruning.masks is None else parts.pruning.record()


def _close(trainer: pl.Trainer, record: dict[str, Any], folder: Folder, parts: Parts) -> None:
    """A finished run: last values to TensorBoard, tables to the terminal."""
    if parts.pruning is not None and not record["sparsity"]["verified"]:
        raise RuntimeError("sparsity: the finished model is not 2:4 sparse in every pruned layer")
    final = {name.replace("/", "_"): value for name, value in record["metrics"].items() if name.startswith("test/")}
    final |= {"train_samples_per_s": record["speed"]["train_samples_per_s"], "skipped_steps": record["precision"]["skipped_steps"]}
    final |= {"peak_allocated_gib": record["memory"]["peak_allocated_gib"]}
    tensorboard.write_final(trainer.logger.experiment, {k: v for k, v in final.items() if v is not None}, trainer.global_step)
    trainer.logger.close()
    print_run(record, folder.path)
