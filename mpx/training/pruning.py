"""The pruning of one run: its recipe and masks, and what happens when the model is pruned."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from omegaconf import DictConfig
from torch import nn
from torchmetrics import MeanMetric

from mpx.data.datamodule import DataModule
from mpx.data.tasks import judged, loss_of
from mpx.errors import UserError, first_line
from mpx.measure.throughput import Throughput
from mpx.runs.history import History
from mpx.runs.weights import UNREADABLE, has_averages, load_averages, load_weights
from mpx.sparsity.callback import Pruning
from mpx.sparsity.choose import Apex, choose_pattern, choose_rules
from mpx.sparsity.coverage import sensitivity
from mpx.sparsity.layers import nothing_to_prune, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.recipes import Recipe
from mpx.system.processes import evaluating
from mpx.training.module import TrainingModule


def build_masks(sparsity: DictConfig, model: nn.Module, recipe: Recipe, device: torch.device) -> Masks:
    """The masks of `model`, not applied yet. Raises UserError if apex should choose them and cannot."""
    pattern, rules = choose_pattern(sparsity), choose_rules(sparsity)
    by_apex = sparsity.get("backend") == "apex"
    if by_apex and device.type != "cuda":
        raise UserError(
            "sparsity.backend=apex: apex's ASP needs a CUDA device, and none is visible here. "
            "Use sparsity.backend=mpx."
        )
    if by_apex:
        pattern = Apex(pattern, model)
    masks = Masks(weights(model, pattern, rules, model.parameters()), pattern, remember=not recipe.fixed)
    if not masks.pruned:
        raise UserError(nothing_to_prune(pattern, masks.weights))
    # what this version of apex cannot do comes before the training, not after the dense phase
    if by_apex:
        pattern.masks([weight.parameter for weight in masks.pruned])
    return masks


def load_dense_weights(sparsity: DictConfig, model: nn.Module) -> None:
    """Load sparsity.dense_ckpt, if it is set: the weights that its run was tested with.

    Raises UserError for a file of another model's weights or averages.
    """
    if sparsity.pattern != "dense" and sparsity.dense_ckpt is not None:
        found = load_weights(Path(sparsity.dense_ckpt), model, "sparsity.dense_ckpt")
        try:
            if has_averages(found):
                load_averages(found, model)
        except UNREADABLE as error:
            raise UserError(
                f"sparsity.dense_ckpt={sparsity.dense_ckpt}: its averages (trainer.ema_decay) are damaged, "
                "or another model's "
                f"({first_line(error)[:160]}). Give another checkpoint."
            ) from error


def build_pruning(
    sparsity: DictConfig, seed: int, masks: Masks, recipe: Recipe, throughput: Throughput,
    module: TrainingModule, data: DataModule,
    after: list[Callable], progress: str, replayed: Callable[[], int],
) -> Pruning:  # fmt: skip
    """after: functions of the trainer, called when the model has been pruned. progress: trainer.progress.
    replayed: see Pruning.
    """
    before: list[Callable[[pl.Trainer], dict[str, Any]]] = []
    if sparsity.get("permute"):
        before.append(partial(_permute, masks, module, data, seed, progress))
    if sparsity.sensitivity:
        before.append(
            lambda trainer: {
                "sensitivity": sensitivity(masks, lambda: validation_loss(trainer, module, data))
            }
        )
    untimed = [partial(_outside_the_throughput, throughput, action) for action in before]
    return Pruning(masks, recipe, before=untimed, after=after, replayed=replayed)


def check_resumed(pruning: Pruning, path: Path, history: History) -> None:
    """Raise UserError for a checkpoint that was pruned in another way."""
    pruned = set(history.pruned.get("masks", ()))
    pattern, recipe = history.pruned.get("by", pruning.by)
    layers = {weight.name for weight in pruning.masks.pruned}
    if pruned and (pruned != layers or (pattern, recipe) != pruning.by):
        raise UserError(
            f"ckpt_path={path} was pruned to {pattern} with sparsity.recipe={recipe} in {len(pruned)} "
            f"layers, this command has {' with '.join(pruning.by)} in {len(layers)}. Use the settings of "
            "sparsity that it was trained with."
        )


def _outside_the_throughput(throughput: Throughput, action: Callable, trainer: pl.Trainer) -> dict[str, Any]:
    throughput.close_window()
    return action(trainer)


def _permute(
    masks: Masks, module: TrainingModule, data: DataModule, seed: int, progress: str, trainer: pl.Trainer
) -> dict[str, Any]:
    """Reorder channels so that the next pruning keeps more magnitude."""
    from mpx.sparsity.permutation import permute_model  # imports scipy and the tracer

    x, _ = next(iter(data.val_dataloader()))
    # all processes come to the same result
    x = trainer.strategy.broadcast(x[:2].cpu()).to(trainer.strategy.root_device)
    model = module.model
    x = x.to(next(model.parameters()).dtype) if x.is_floating_point() else x
    shown = progress != "off" and trainer.is_global_zero
    report = permute_model(
        model,
        x,
        weights=masks.weights,
        optimizer=trainer.optimizers,
        exhaustive=True,
        seed=seed,
        progress=shown,
    )
    if module.ema is not None:
        report.permutation.apply(module.ema.averages)
    found = {"kept_before": report.kept_before, "kept_after": report.kept_after, "seconds": report.seconds}
    return {"permutation": found | {"reason": report.reason, "layers": report.layers}}


@torch.no_grad()
def validation_loss(trainer: pl.Trainer, module: TrainingModule, data: DataModule) -> float:
    """The model's mean loss over the validation batches of all processes. Leaves random states and the
    layers' modes as they are.
    """
    device, limit, batches = trainer.strategy.root_device, trainer.limit_val_batches, data.val_dataloader()
    most = limit if isinstance(limit, int) else int(limit * len(batches))
    mean = MeanMetric(nan_strategy="disable").to(device).set_dtype(torch.float64)  # `to` resets the dtype
    with evaluating(module), torch.random.fork_rng([device] if device.type == "cuda" else []):
        for _, batch in zip(range(most), batches, strict=False):
            x, y = trainer.precision_plugin.convert_input(batch)
            with trainer.precision_plugin.val_step_context():
                logits, y = judged(module(x), y, module.spec.task)
                mean.update(loss_of(logits, y, task=module.spec.task).expand(y.numel()))
    return mean.compute().item()
