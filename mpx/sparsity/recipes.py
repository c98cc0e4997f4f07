"""Recipes: when a model is pruned, and what happens to the pruned weights. `mpx.sparsity.callback.Pruning` calls them during training.

| recipe | dense phase | pruning | afterwards |
|---|---|---|---|
| asp | up to `start` | at once | fine-tuning with fixed masks, which repeats the dense phase's schedule |
| one_shot | the whole run | at once, at its end | nothing |
| from_start | none | at once, of the initial weights | training with fixed masks |
| gradual | up to `start` | in increasing shares until `end` | fine-tuning with fixed masks |
| sr_ste | up to `start` | again at every step; pruned weights keep learning | nothing: the last masks stay |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mpx.sparsity.masks import Masks


@dataclass(frozen=True)
class Plan:
    """The steps at which a recipe prunes, counted in optimizer steps, with those that the loss scaler skips."""

    start: int  # the dense phase ends before this step's forward pass
    end: int  # gradual pruning reaches the full pattern before this step's forward pass
    every: int | None  # steps between two computations of the masks; None: computed once


class Recipe:
    """Computes fixed masks before the forward pass of step `plan.start` and, if `plan.every` is set, again every `plan.every` steps.

    With `plan.every` the pruned values are remembered and compete again at each computation (apex's `allow_recompute_mask`). Values that
    win return to the weight, with a zero optimizer state. asp and from_start are this class, with different plans.
    Source of asp: Mishra et al., Accelerating Sparse Deep Neural Networks, arXiv:2104.08378.
    """

    after_training = False
    fixed = True  # pruned weights have zero gradients and a zero optimizer state

    def __init__(self, name: str, plan: Plan, *, remember: bool = False):
        self.name, self.plan, self.remember = name, plan, remember
        self.restarts_schedule = name == "asp"

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        """Called once per optimizer step, before its first forward pass. step: number of finished optimizer steps."""
        first = not masks.active and step >= self.plan.start
        again = masks.active and self.plan.every is not None and (step - self.plan.start) % self.plan.every == 0
        if first or again:
            masks.prune(optimizers)

    def on_gradients(self, masks: Masks, optimizer: Optimizer) -> None:
        """Called when the gradients are complete: summed over batches and processes, unscaled, not yet clipped."""
        masks.mask_gradients()

    def after_step(self, step: int, masks: Masks, optimizers: Sequence[Optimizer], skipped: Tensor | None) -> None:
        """Called after each optimizer step. step: number of finished steps, including this one.

        skipped: bool on the device, whether the loss scaler skipped this step; None without a scaler.
        """

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class OneShot(Recipe):
    """Prunes after training, without fine-tuning."""

    after_training = True

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        pass


class Gradual(Recipe):
    """Prunes 1 - (1 - progress)³ of what the pattern prunes, every `plan.every` steps from `plan.start` to `plan.end`.

    The schedule is the same for every pattern: each time, the full mask is computed from the current weights, and the smallest of each
    layer's masked weights are pruned. Until `plan.end` a layer therefore holds both pruned and unpruned groups. (Lowering n of n:m
    instead has only two steps for 2of4, and pruning layer by layer makes the result depend on the order of the layers.)
    Pruned weights stay pruned, since they are the smallest.
    Source: Zhu and Gupta, To prune, or not to prune, arXiv:1710.01878.
    """

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        due = step >= self.plan.end or (step > self.plan.start and (step - self.plan.start) % (self.plan.every or 1) == 0)
        if due and not masks.complete:
            masks.prune(optimizers, cubic(self.plan, step))


def cubic(plan: Plan, step: int) -> float:
    """Share of the pattern's pruning that is due at `step`, 0 to 1."""
    if step >= plan.end:
        return 1.0
    return 1 - (1 - (step - plan.start) / (plan.end - plan.start)) ** 3
