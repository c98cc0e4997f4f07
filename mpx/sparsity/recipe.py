"""The ASP recipe as a Lightning callback: train dense, prune once at a step, fine-tune with the masks fixed."""

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from mpx.errors import UserError
from mpx.sparsity.layers import weights
from mpx.sparsity.masks import Masks, nothing_to_prune


class Pruning(Callback):
    """Prunes before the forward pass of optimizer step `start_step` (set before training starts) and enforces the masks from then on.

    shape_rule, skip: see mpx.sparsity.layers.weights.
    Raises UserError when nothing can be pruned, RuntimeError when a saved or finished model breaks its pattern.
    """

    def __init__(self, *, shape_rule: str, skip: tuple[str, ...]):
        self.shape_rule, self.skip = shape_rule, skip
        self.start_step = 0
        self.masks: Masks | None = None
        self.on_prune: list = []  # called with the trainer right after pruning: restart the timing, forget dense checkpoints

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.masks is None:
            self.masks = Masks(weights(pl_module.model, shape_rule=self.shape_rule, skip=self.skip))
            if not self.masks.pruned:
                raise UserError(nothing_to_prune(self.masks.weights))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.masks.follow()

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if not self.masks.active and trainer.global_step >= self.start_step:
            self.masks.prune(trainer.optimizers)
            for action in self.on_prune:
                action(trainer)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        if self.masks.active:
            self.masks.mask_gradients()

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._assert_pattern("a checkpoint was about to be saved")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._assert_pattern("training ended")

    def _assert_pattern(self, when: str) -> None:
        if self.masks.active and (broken := self.masks.verify()):
            raise RuntimeError(f"When {when}, {len(broken)} pruned weights broke the 2of4 pattern: {', '.join(broken[:3])}")

    def state_dict(self) -> dict[str, Any]:
        return self.masks.state_dict() if self.masks is not None else {"masks": {}, "kept": {}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this after `setup`, also when nothing is left to train."""
        self.masks.load_state_dict(state_dict)

    def record(self) -> dict[str, Any]:
        """The sparsity part of result.json."""
        layers = self.masks.coverage()
        pruned = [row for row in layers if row["pruned"]]
        sizes = {weight.name: weight.parameter.numel() for weight in self.masks.weights}
        dense_share = _weighted(layers, "density", sizes)
        return {
            "pattern": "2of4",
            "recipe": "asp",
            "verified": bool(pruned) and not self.masks.verify(),
            "density": _weighted(pruned, "density", sizes),
            "pruned_share": None if dense_share is None else 1 - dense_share,
            "kept_magnitude": _weighted(pruned, "kept_magnitude", sizes),
            "layers": layers,
        }


def prune_step(start: float, total_steps: int) -> int:
    """The optimizer step before which the pruning happens, for a run of `total_steps`; at least one step is left for fine-tuning."""
    return min(round(start * total_steps), max(total_steps - 1, 0))


def _weighted(rows: list[dict[str, Any]], key: str, sizes: dict[str, int]) -> float | None:
    """Mean of `key` over the rows, each layer counting by its number of weights; None without rows."""
    total = sum(sizes[row["name"]] for row in rows)
    return sum(row[key] * sizes[row["name"]] for row in rows) / total if total else None
