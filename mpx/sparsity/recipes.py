"""Recipes: when a model is pruned and what happens to what was pruned. `mpx.sparsity.recipe.Pruning` calls them during training.

| recipe | dense phase | pruning | afterwards |
|---|---|---|---|
| asp | up to `start` | at once | fine-tuning with fixed masks, which repeats the dense phase's schedule |
| one_shot | the whole run | at once, at its end | nothing |
| from_start | none | at once, of the initial weights | training with fixed masks |
| gradual | up to `start` | more and more until `end` | fine-tuning with fixed masks |
| sr_ste | up to `start` | again at every step; pruned weights go on learning | nothing: the last masks stay |
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mpx.sparsity.masks import Masks
from mpx.sparsity.plan import Plan


class Recipe:
    """Fixed masks, computed before the forward pass of step `plan.start` and, if asked for, again every `plan.every` steps.

    With `plan.every` the pruned values are remembered as they were when pruned, and compete again each time (apex's
    `allow_recompute_mask`): those that win come back, with a zero optimizer state.
    Source of asp: Mishra et al., Accelerating Sparse Deep Neural Networks, arXiv:2104.08378.
    """

    after_training = False
    fixed = True  # pruned weights have zero gradients and a zero optimizer state

    def __init__(self, name: str, plan: Plan, *, recompute: bool = False):
        self.name, self.plan, self.remember = name, plan, recompute
        self.restarts_schedule = name == "asp"

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        """step: optimizer steps done so far. Called once per step, before its first forward pass."""
        first = not masks.active and step >= self.plan.start
        again = masks.active and self.plan.every is not None and (step - self.plan.start) % self.plan.every == 0
        if first or again:
            masks.prune(optimizers)

    def on_gradients(self, masks: Masks, optimizer: Optimizer) -> None:
        """Gradients are complete: summed over batches and processes, unscaled, not yet clipped."""
        masks.mask_gradients()

    def after_step(self, step: int, masks: Masks, optimizers: Sequence[Optimizer], skipped: Tensor | None) -> None:
        """step: optimizer steps done, with this one. skipped: whether the scaler left it out, a bool on the device; None: it never does."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class OneShot(Recipe):
    """Prunes when training is over, and leaves it at that."""

    after_training = True

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        pass


class Gradual(Recipe):
    """From `plan.start` to `plan.end`, every `plan.every` steps: prunes 1 - (1 - progress)³ of what the pattern prunes.

    For every pattern alike: the full mask is computed from the weights as they are, and of the weights that it prunes the smallest of
    each layer go first. On the way a layer so holds groups that are pruned already and groups that are not yet; at `plan.end` the pattern
    is whole. (Lowering n of n:m has but two steps for 2of4, and layer by layer decides how much the first layers suffer for longest.)
    What is pruned stays pruned, being the smallest.
    Source: Zhu and Gupta, To prune, or not to prune, arXiv:1710.01878.
    """

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        due = step >= self.plan.end or (step > self.plan.start and (step - self.plan.start) % self.plan.every == 0)
        if due and not masks.complete:
            masks.prune(optimizers, cubic(self.plan, step))


def cubic(plan: Plan, step: int) -> float:
    """Share of the pattern's pruning that is done at `step`, 0 to 1."""
    if step >= plan.end:
        return 1.0
    return 1 - (1 - (step - plan.start) / (plan.end - plan.start)) ** 3
