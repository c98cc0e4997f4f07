"""Join the sparsity room to a run: when it prunes, from which weights, and what else has to know."""

from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torch import nn

from mpx.errors import UserError
from mpx.evaluating import evaluating
from mpx.parts import Parts
from mpx.precision.modes import MODES
from mpx.precision.switches import float32_matmuls
from mpx.run.checkpoint import History, load_weights
from mpx.run.folder import CHECKPOINTS, Folder
from mpx.sparsity.apex import Apex
from mpx.sparsity.layers import weights
from mpx.sparsity.permutation import permute_model
from mpx.sparsity.plan import plan
from mpx.sparsity.recipe import Pruning
from mpx.sparsity.sensitivity import sensitivity


def prepare(cfg: DictConfig, parts: Parts, model: nn.Module, steps: int, epoch: int, *, resumed: bool) -> int | None:
    """Plan the recipe for a run of `steps` optimizer steps, `epoch` of them an epoch. Returns the step at which the schedule restarts.

    resumed: the run continues from a checkpoint, which brings the weights. Raises UserError for a plan or checkpoint that cannot be.
    """
    pruning = parts.pruning
    if pruning is None:
        return None
    if cfg.sparsity.dense_ckpt is not None and not resumed:
        load_weights(Path(cfg.sparsity.dense_ckpt), model, "sparsity.dense_ckpt")
    pruning.recipe.plan = plan(cfg.sparsity, steps, epoch)
    if cfg.sparsity.get("backend") == "apex":
        _let_apex_choose(cfg, parts, model)
    elif cfg.sparsity.get("permute"):
        pruning.before_prune.append(lambda trainer: _permute(cfg, parts, trainer))
    if cfg.sparsity.sensitivity:
        pruning.before_prune.append(lambda trainer: _measure_sensitivity(parts, trainer))
    pruning.on_prune.append(lambda trainer: _say_pruned(parts, trainer))
    if parts.ema is not None:
        pruning.averages = lambda: parts.ema.averages
    return pruning.recipe.plan.start if pruning.recipe.restarts_schedule else None


def check_resumed(pruning: Pruning, path: Path | None, history: History, steps: int) -> None:
    """Raise UserError for a checkpoint that was pruned in another way, or comes too late to be pruned in a run of `steps` steps."""
    if path is None:
        return
    theirs, ours = history.pruned_by, pruning.by
    if history.pruned and theirs is not None and (theirs[0] != ours[0] or (theirs[1] != ours[1] and "sr_ste" in (theirs[1], ours[1]))):
        raise UserError(
            f"ckpt_path={path} was pruned to {theirs[0]} with sparsity.recipe={theirs[1]}, this command has {ours[0]} with {ours[1]}. "
            "Use the settings of sparsity that it was trained with."
        )
    if history.pruned and (other := sorted(history.pruned ^ {weight.name for weight in pruning.masks.pruned})):
        where = "there" if other[0] in history.pruned else "by this command"
        raise UserError(f"ckpt_path={path}: {other[0]} is pruned {where} alone. Use the settings of sparsity that it was trained with.")
    if not history.pruned and not pruning.recipe.after_training and history.steps[-1] >= steps:
        raise UserError(
            f"ckpt_path={path} is dense and of step {history.steps[-1]}, at which this run of {steps} steps ends before it prunes. "
            "Raise trainer.max_epochs or trainer.max_steps."
        )


def _say_pruned(parts: Parts, trainer: pl.Trainer) -> None:
    """Accuracy falls here for a while, which a reader of the epochs' lines would wonder at."""
    if trainer.is_global_zero:
        masks = parts.pruning.masks
        print(
            f"step {trainer.global_step}: {len(masks.pruned)} of {len(masks.weights)} layers pruned to {parts.pruning.pattern.name}",
            flush=True,
        )


def nothing_to_train(cfg: DictConfig) -> bool:
    """Pruned in one shot from a dense checkpoint: there is neither a dense phase nor fine-tuning."""
    return cfg.sparsity.pattern != "dense" and cfg.sparsity.recipe == "one_shot" and cfg.sparsity.dense_ckpt is not None


def prune_after_training(parts: Parts, trainer: pl.Trainer, module: pl.LightningModule, data: Any, folder: Folder) -> None:
    """The pruning of a recipe without fine-tuning. Both checkpoints then hold the pruned model: the best dense one no longer counts."""
    if parts.pruning is None or not parts.pruning.recipe.after_training or parts.pruning.masks.active:  # active: pruned before a resume
        return
    module.to(trainer.strategy.root_device)  # Lightning has taken it to the CPU
    parts.pruning.prune_now(trainer)
    for name in ("best", "last"):
        trainer.save_checkpoint(folder.path / CHECKPOINTS / f"{name}.ckpt")
    trainer.strategy.checkpoint_io.wait()
    trainer.validate(module, datamodule=data, verbose=False)


def _let_apex_choose(cfg: DictConfig, parts: Parts, model: nn.Module) -> None:
    """Raises UserError where apex could not."""
    if parts.device.type != "cuda":
        raise UserError("sparsity.backend=apex: apex's ASP needs a CUDA device, and none is visible here. Use sparsity.backend=mpx.")
    pruning, permute = parts.pruning, bool(cfg.sparsity.get("permute"))
    pattern = pruning.pattern = Apex(pruning.pattern, model, partial(float32_matmuls, MODES["fp32"], emulate=False))
    pattern.refuse(weights(model, pattern, pruning.rules))
    pattern.rehearse(parts.device, permute=permute)
    if permute:
        pruning.before_prune.append(lambda trainer: _permute_by_apex(parts, pattern, trainer))


def _permute_by_apex(parts: Parts, pattern: Apex, trainer: pl.Trainer) -> None:
    parts.throughput.close(trainer)  # searching is no training time
    parts.pruning.permutation = pattern.permute(parts.pruning.masks.weights, trainer.optimizers)


def _permute(cfg: DictConfig, parts: Parts, trainer: pl.Trainer) -> None:
    """Reorder channels so that the pruning that follows keeps more magnitude; the model computes the same."""
    parts.throughput.close(trainer)  # searching is no training time
    x, _ = trainer.strategy.batch_to_device(next(iter(trainer.datamodule.val_dataloader())))
    model, weights = trainer.lightning_module.model, parts.pruning.masks.weights
    x = x[:2].to(next(model.parameters()).dtype) if x.is_floating_point() else x[:2]
    report = permute_model(model, x, weights=weights, optimizer=trainer.optimizers, exhaustive=True, seed=cfg.seed)
    if parts.ema is not None:
        report.permutation.apply(parts.ema.averages)
    parts.pruning.permutation = {
        "kept_before": report.kept_before, "kept_after": report.kept_after, "seconds": report.seconds,
        "reason": report.reason, "layers": report.rows(),
    }  # fmt: skip


def _measure_sensitivity(parts: Parts, trainer: pl.Trainer) -> None:
    parts.throughput.close(trainer)  # evaluation is no training time
    parts.pruning.sensitivity = sensitivity(parts.pruning.masks, lambda: validation_loss(trainer))


@torch.no_grad()
def validation_loss(trainer: pl.Trainer) -> float:
    """Mean loss over the validation batches (of all processes) of the model as it is. Leaves random states and its layers' modes alone."""
    module, device = trainer.lightning_module, trainer.strategy.root_device
    limit, batches = trainer.limit_val_batches, trainer.datamodule.val_dataloader()
    most = limit if isinstance(limit, int) else int(limit * len(batches))
    totals = torch.zeros(2, dtype=torch.float64, device=device)  # Σ loss · targets, targets
    with evaluating(module), torch.random.fork_rng([device] if device.type == "cuda" else []):
        for _, batch in zip(range(most), batches, strict=False):
            x, y = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
            with trainer.precision_plugin.val_step_context():
                loss = module.loss(module(x), y)
            totals += torch.stack([loss.double() * y.numel(), torch.tensor(y.numel(), dtype=torch.float64, device=device)])
    total, count = trainer.strategy.reduce(totals, reduce_op="sum").tolist()
    return total / count
