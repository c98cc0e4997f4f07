"""A recipe beside training, as a Lightning callback: its steps at the right moments, masks in checkpoints, and the proof that they hold."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from mpx.errors import UserError
from mpx.sparsity.coverage import coverage, record
from mpx.sparsity.layers import Rules, Weight, weights
from mpx.sparsity.masks import Masks
from mpx.sparsity.patterns import NofM, Pattern
from mpx.sparsity.recipes import Recipe


class Pruning(Callback):
    """Prunes a LightningModule's `model` by `pattern`, where `rules` allow it, when and how `recipe` says.

    Raises UserError when nothing can be pruned, RuntimeError when a saved or finished model breaks its pattern.
    """

    def __init__(self, pattern: Pattern, rules: Rules, recipe: Recipe):
        self.pattern, self.rules, self.recipe = pattern, rules, recipe
        self.masks: Masks | None = None
        self.before_prune: list[Callable[[pl.Trainer], None]] = []  # called while the model is still dense
        self.on_prune: list[Callable[[pl.Trainer], None]] = []  # called right after: restart the timing, forget dense checkpoints
        self.averages: Callable[[], Mapping[str, Tensor]] = dict  # averages of the weights, which are to be sparse when used
        self.sensitivity: list[dict[str, Any]] = []  # rows of mpx.sparsity.sensitivity, where it was asked for
        self.permutation: dict[str, Any] | None = None  # what reordering the channels before the pruning brought
        self.prepared = False  # what is to be done before the pruning has been done
        self._step: int | None = None  # the newest step that began
        self._stepped = False  # the optimizer has stepped in this batch

    def attach(self, model: nn.Module) -> None:
        """Find what is to be pruned. Raises UserError when that is nothing."""
        self.masks = Masks(weights(model, self.pattern, self.rules), self.pattern, remember=self.recipe.remember)
        if not self.masks.pruned:
            raise UserError(nothing_to_prune(self.pattern, self.masks.weights))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.masks.follow()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        step, dense, whole = trainer.global_step, not self.masks.active, self.masks.complete
        if step == self._step:  # a further batch that is accumulated
            return
        self._step = step
        if dense and not self.prepared and step >= self.recipe.plan.start and not self.recipe.after_training:
            self.prepared = True  # above the start: continued from a checkpoint of a dense run
            self._call(self.before_prune, trainer)
        self.recipe.before_forward(step, self.masks, trainer.optimizers)
        if self.masks.complete and not whole:
            self._call(self.on_prune, trainer)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        if self.masks.active:
            self.recipe.on_gradients(self.masks, optimizer)
            self._stepped = True

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._stepped:
            self._stepped = False
            skipped = getattr(trainer.precision_plugin, "skipped_last", None)
            self.recipe.after_step(trainer.global_step, self.masks, trainer.optimizers, skipped)

    def prune_now(self, trainer: pl.Trainer) -> None:
        """The pruning of a recipe that does it when training is over."""
        self._call(self.before_prune, trainer)
        self.masks.prune(trainer.optimizers)
        self._mask_averages()

    def _mask_averages(self) -> None:
        if averages := self.averages():
            self.masks.mask_averages(averages)

    def _call(self, actions: list[Callable[[pl.Trainer], None]], trainer: pl.Trainer) -> None:
        for action in actions:
            action(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._mask_averages()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._assert_pattern(trainer, "a checkpoint was about to be saved")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._assert_pattern(trainer, "training ended")

    def _assert_pattern(self, trainer: pl.Trainer, when: str) -> None:
        if self.masks.active and (broken := self.masks.verify(trainer.optimizers if self.recipe.fixed else ())):
            raise RuntimeError(f"When {when}, {len(broken)} pruned weights broke the {self.pattern.name} pattern: {', '.join(broken[:3])}")

    def state_dict(self) -> dict[str, Any]:
        masks = self.masks.state_dict() if self.masks is not None else {}
        return masks | {
            "recipe": self.recipe.state_dict(),
            "by": self.by,
            "prepared": self.prepared,
            "sensitivity": self.sensitivity,
            "permutation": self.permutation,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this after `setup`, also when nothing is left to train."""
        self.masks.load_state_dict(state_dict)
        self.recipe.load_state_dict(state_dict["recipe"])
        self.prepared = state_dict.get("prepared", False)
        self.sensitivity, self.permutation = state_dict["sensitivity"], state_dict["permutation"]

    @property
    def by(self) -> tuple[str, str]:
        """The names of the pattern and of the recipe."""
        return self.pattern.name, self.recipe.name

    def record(self, *, fmt: str, device: torch.device) -> dict[str, Any]:
        """The sparsity part of result.json. fmt: the number format in which the run multiplies matrices, on `device`."""
        return record(self.masks, self.recipe.name, coverage(self.masks, fmt=fmt, device=device)) | {
            "sensitivity": self.sensitivity,
            "permutation": self.permutation,
        }


def nothing_to_prune(pattern: Pattern, found: list[Weight]) -> str:
    reasons = "; ".join(f"{weight.name}: {weight.reason}" for weight in found[:3]) or "no linear, convolution or recurrent layer"
    every = " ".join(weight.reason for weight in found)
    ways = [f"another {key}" for key in dict.fromkeys(re.findall(r"sparsity\.\w+", every))]
    ways += ["sparsity.shape_rule=any", "a wider model"] if "no sparse Tensor Core shape" in every else []
    ways += ["another sparsity.density"] if "would stay at density" in every else []
    way = f"{', '.join(ways)}, or sparsity=dense" if ways else "sparsity=dense, or another model"
    choice = f"nofm ({pattern.name})" if isinstance(pattern, NofM) and pattern.name != "2of4" else pattern.name
    return f"sparsity={choice} finds nothing to prune in this model ({reasons}). Use {way}."
