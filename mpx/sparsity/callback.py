"""The Lightning callback that runs a recipe during training, saves the masks in checkpoints and verifies
them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.optim import LBFGS

from mpx.errors import UserError
from mpx.sparsity.coverage import record
from mpx.sparsity.masks import Masks
from mpx.sparsity.recipes import Recipe
from mpx.system.printing import how_many


class Pruning(Callback):
    """Prunes the model of `masks` as `recipe` prescribes.

    before: called in order just before the pruning; each returns findings for the record (`sensitivity`,
    `permutation`). after: called right after the pruning, to restart what dense training had advanced, such
    as the schedule. replayed: returns how many steps a CUDA graph has replayed, in which no hook of the
    optimizer's step is called; None: there is no graph.
    Raises RuntimeError if a saved or finished model breaks its pattern.
    """

    def __init__(
        self,
        masks: Masks,
        recipe: Recipe,
        *,
        before: Sequence[Callable[[pl.Trainer], dict[str, Any]]] = (),
        after: Sequence[Callable[[pl.Trainer], None]] = (),
        replayed: Callable[[], int] | None = None,
    ):
        self.masks, self.recipe = masks, recipe
        self.before, self.after, self.replayed = before, after, replayed
        self.findings: dict[str, Any] = {"sensitivity": [], "permutation": None}
        self._prepared = False  # `before` has been called
        self._step: int | None = None  # the current optimizer step
        self._open = False  # an optimizer has got its gradients in this batch
        self._replayed = 0  # steps, up to the newest batch's end
        # pruned, and no step has ended since: the optimizers may yet move pruned weights
        self._unproven = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning calls this when the weights are where they train, and the masks are loaded."""
        self.masks.bind(pl_module.get_submodule("model"))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Raises UserError for a training in which pruned weights would not stay zero."""
        if any(isinstance(optimizer, LBFGS) for optimizer in trainer.optimizers):
            raise UserError(
                f"sparsity={self.masks.pattern.name} with LBFGS: a step computes the "
                "loss several times and moves along directions of earlier steps, which move pruned weights "
                "too. Use sparsity=dense or another optimizer."
            )
        if not (pl_module.automatic_optimization or self.recipe.fixed):
            raise UserError(
                f"sparsity.recipe={self.recipe.name} with manual optimization: it prunes again after each "
                "step, and mpx does not know where a step of training_step ends. Use sparsity.recipe=asp."
            )

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step, complete = self.step_of(trainer), self.masks.complete
        if step == self._step:  # another batch of an accumulated step
            return
        self._step = step
        # the step is later than `start` if the run continues a dense checkpoint
        due = step >= self.recipe.plan.start
        if due and not (self.masks.active or self._prepared or self.recipe.after_training):
            self._prepare(trainer)
        self.recipe.before_forward(step, self.masks, trainer.optimizers)
        if self.masks.complete and not complete:
            self._unproven = True
            if trainer.is_global_zero:  # explains why accuracy falls
                of = f"{len(self.masks.pruned)} of {len(self.masks.weights)}"
                print(f"step {step}: {of} layers pruned to {self.masks.pattern.name}", flush=True)
            for action in self.after:
                action(trainer)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        if self.masks.active:
            self.recipe.on_gradients(self.masks, optimizer)
            self._open = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        before, self._replayed = self._replayed, 0 if self.replayed is None else self.replayed()
        if not self._open and not (self.masks.active and self._replayed > before):
            return
        self._open = False
        skipped = getattr(trainer.precision_plugin, "skipped_last", None)
        self.recipe.after_step(self.step_of(trainer), self.masks, trainer.optimizers, skipped)
        if self._unproven:
            self._unproven = False
            self.assert_pattern(trainer, "the first step after the pruning ended")

    def step_of(self, trainer: pl.Trainer) -> int:
        """The number of finished optimizer steps, with those that the loss scaler skipped."""
        return trainer.global_step

    def make_ready(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Called before `prune_now` where no step has been trained. These masks are made already."""

    def prune_now(self, trainer: pl.Trainer) -> None:
        """Prune now, for a recipe that prunes after training."""
        self._prepare(trainer)
        self.masks.prune(trainer.optimizers)

    def unfinished(self, trainer: pl.Trainer) -> str | None:
        """Why the model is not pruned after training; None if it is. A callback may stop training before the
        pruning.
        """
        if self.masks.complete:
            return None
        pattern = self.masks.pattern.name
        if self.recipe.after_training:
            return (
                f"the model is not {pattern} yet: call prune_now(trainer) of the mpx.Sparsity, then "
                "trainer.test."
            )
        return (
            f"training stopped at step {self.step_of(trainer)}, and the pruning was due by step "
            f"{self.recipe.plan.end}, so the model is not {pattern}. Prune earlier (sparsity.start, "
            "sparsity.end), or let it train longer."
        )

    def _prepare(self, trainer: pl.Trainer) -> None:
        self._prepared = True
        for action in self.before:
            self.findings |= action(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.assert_pattern(trainer, "a checkpoint was about to be saved")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.assert_pattern(trainer, "training ended")

    def assert_pattern(self, trainer: pl.Trainer, when: str) -> None:
        if not self.masks.active:
            return
        if broken := self.masks.verify(trainer.optimizers if self.recipe.fixed else ()):
            pattern, some = self.masks.pattern.name, ", ".join(broken[:3])
            raise RuntimeError(
                f"When {when}, {how_many(len(broken), 'pruned weight')} broke the {pattern} pattern: {some}"
            )

    def state_dict(self) -> dict[str, Any]:
        state = {"recipe": self.recipe.state_dict(), "by": self.by, "prepared": self._prepared}
        return self.masks.state_dict() | state | self.findings

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning calls this after `setup`, even if no step is left to train."""
        self.masks.load_state_dict(state_dict)
        self.recipe.load_state_dict(state_dict["recipe"])
        self._prepared = state_dict["prepared"]
        self.findings = {name: state_dict[name] for name in self.findings}

    @property
    def by(self) -> tuple[str, str]:
        """The names of the pattern and of the recipe."""
        return self.masks.pattern.name, self.recipe.name

    def record(self, *, fmt: str, device: torch.device) -> dict[str, Any]:
        """The sparsity part of result.json. fmt: the number format of the run's matrix products on
        `device`.
        """
        return record(self.masks, self.recipe.name, fmt=fmt, device=device) | self.findings
