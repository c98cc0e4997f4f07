"""Recipes: when a model is pruned, and what happens to the pruned weights. `mpx.sparsity.callback.Pruning`
calls them during training.

| recipe | dense phase | pruning | afterwards |
|---|---|---|---|
| asp | up to `start` | at once | fine-tuning with fixed masks, which repeats the dense phase's schedule |
| one_shot | the whole run | at once, at its end | nothing |
| from_start | none | at once, of the initial weights | training with fixed masks |
| gradual | up to `start` | in increasing shares until `end` | fine-tuning with fixed masks |
| sr_ste | up to `start` | again at every step; pruned weights keep learning | nothing: the last masks stay |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.sparsity.layers import Weight
from mpx.sparsity.masks import Masks

INCREASES = 20  # of the share that gradual pruning has pruned


@dataclass(frozen=True)
class Plan:
    """The steps at which a recipe prunes, counted in optimizer steps, with those that the loss scaler
    skips.
    """

    start: int  # the dense phase ends before this step's forward pass
    end: int  # gradual pruning reaches the full pattern before this step's forward pass


class Recipe:
    """Computes fixed masks before the forward pass of step `plan.start`.

    asp and from_start are this class, with different plans. Source of asp: Mishra et al., Accelerating Sparse
    Deep Neural Networks, arXiv:2104.08378.
    """

    after_training = False
    # pruned weights have zero gradients and a zero optimizer state; otherwise they are remembered and go on
    # learning
    fixed = True

    def __init__(self, name: str, plan: Plan):
        self.name, self.plan = name, plan
        self.restarts_schedule = name == "asp"

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        """Called once per optimizer step, before its first forward pass. step: number of finished optimizer
        steps.
        """
        if not masks.active and step >= self.plan.start:
            masks.prune(optimizers)

    def on_gradients(self, masks: Masks, optimizer: Optimizer) -> None:
        """Called when the gradients are complete: summed over batches and processes, unscaled, not yet
        clipped.
        """
        masks.mask_gradients()

    def after_step(
        self, step: int, masks: Masks, optimizers: Sequence[Optimizer], skipped: Tensor | None
    ) -> None:
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
    """Prunes 1 - (1 - progress)³ of what the pattern prunes, in INCREASES equal steps from `plan.start` to
    `plan.end`.

    The schedule is the same for every pattern: each time, the full mask is computed from the current weights,
    and the smallest of each layer's masked weights are pruned. Until `plan.end` a layer therefore holds both
    pruned and unpruned groups. Pruned weights stay pruned, since they are the smallest.
    Source: Zhu and Gupta, To prune, or not to prune, arXiv:1710.01878.
    """

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        start, end = self.plan.start, self.plan.end
        every = max(1, (end - start) // INCREASES)
        due = step >= end or (step > start and (step - start) % every == 0)
        if due and not masks.complete:
            masks.prune(optimizers, cubic(self.plan, step))


def cubic(plan: Plan, step: int) -> float:
    """Share of the pattern's pruning that is due at `step`, 0 to 1."""
    if step >= plan.end:
        return 1.0
    return 1 - (1 - (step - plan.start) / (plan.end - plan.start)) ** 3


class SrSte(Recipe):
    """SR-STE recomputes the masks at every step, while the pruned weights keep learning.

    Forward and backward passes, validation and checkpoints see the sparse weights. The remembered values of
    the pruned weights are restored just before the optimizer steps, and removed again after the step. The
    gradient of the sparse weights is applied unchanged to the dense ones (the straight-through estimator),
    and pruned weights decay towards zero by λ, so that the masks settle. Source: Zhou et al., Learning N:M
    Fine-grained Structured Sparse Neural Networks From Scratch, arXiv:2102.04010.

    Under Adam, changing masks make the gradients of the second moment noisy, and the second moment would also
    divide the decay. Three things therefore differ (Lu et al., STEP, arXiv:2302.01172):

    - The decay is decoupled, as in AdamW: w ← w - lr · λ · (1 - mask) · w, and no moment sees it. Under SGD
      it is part of the gradient, as published.
    - After a dense phase (`sparsity.start` above 0) the second moment of the pruned layers keeps its value
      from the dense phase. STEP ignores the newest gradient; here it counts for its own step.
    - A weight that hardly saw a gradient in the dense phase, as behind a ReLU that was never active, keeps
      Adam's own second moment. Otherwise the momentum of its first gradient, divided by a value near zero,
      would move it without bound.

    decay: λ.
    """

    fixed = False

    def __init__(self, plan: Plan, *, decay: float):
        super().__init__("sr_ste", plan)
        self.decay = decay
        # bias-corrected second moments at the end of the dense phase; 0 where a weight hardly saw a gradient
        self.variances: dict[str, Tensor] = {}

    def before_forward(self, step: int, masks: Masks, optimizers: Sequence[Optimizer]) -> None:
        if not masks.active and step >= self.plan.start:
            for optimizer in filter(_is_adam, optimizers):
                self._hold(masks, optimizer)
            masks.compute()
            masks.apply()

    @torch.no_grad()
    def on_gradients(self, masks: Masks, optimizer: Optimizer) -> None:
        masks.restore()
        if _is_adam(optimizer):
            return
        for _, weights in _groups(masks, optimizer):
            grads = {weight.name: grad for weight in weights if (grad := weight.parameter.grad) is not None}
            if grads:
                torch._foreach_add_(
                    list(grads.values()), [masks.stash[name] for name in grads], alpha=self.decay
                )

    @torch.no_grad()
    def after_step(
        self, step: int, masks: Masks, optimizers: Sequence[Optimizer], skipped: Tensor | None
    ) -> None:
        for optimizer in filter(_is_adam, optimizers):
            for group, weights in _groups(masks, optimizer):
                self._decay(masks, group["lr"], weights, skipped)
                self._restore(optimizer, group["betas"][1], weights)
        masks.compute()
        masks.apply()

    def _decay(self, masks: Masks, lr: Any, weights: list[Weight], skipped: Tensor | None) -> None:
        rate = lr * self.decay
        # a number stays one, since its way to the device would wait for the steps before
        if isinstance(rate, Tensor):
            rate = rate.to(weights[0].parameter.device)
        rate = rate if skipped is None else rate * ~skipped
        less = torch._foreach_mul([masks.stash[weight.name] for weight in weights], rate)
        torch._foreach_sub_([weight.parameter for weight in weights], less)

    def _hold(self, masks: Masks, optimizer: Optimizer) -> None:
        """Keep the bias-corrected second moments of the dense phase."""
        for group, weights in _groups(masks, optimizer):
            beta = group["betas"][1]
            for weight in weights:
                state = optimizer.state.get(weight.parameter, {})
                if "exp_avg_sq" in state:
                    held = self.variances[weight.name] = state["exp_avg_sq"] / (1 - beta ** state["step"])
                    # the mean: a gradient of the layer's usual size
                    held.masked_fill_(held < (1 - beta) * held.mean(), 0)

    def _restore(self, optimizer: Optimizer, beta: float, weights: list[Weight]) -> None:
        """Put the kept second moments, with the bias of this step, in the place of the optimizer's."""
        held = [
            weight
            for weight in weights
            if weight.name in self.variances and weight.parameter in optimizer.state
        ]
        if not held:
            return
        states = [optimizer.state[weight.parameter] for weight in held]
        newest = [state["exp_avg_sq"] for state in states]
        for weight, variance in zip(held, newest, strict=True):
            # those of a checkpoint are on the host
            self.variances[weight.name] = self.variances[weight.name].to(variance)
        # in one copy, since they may be on the host
        steps = torch.stack([state["step"] for state in states]).to(newest[0].device)
        values = torch._foreach_mul(
            [self.variances[weight.name] for weight in held], (1 - beta**steps).unbind()
        )
        for variance, value in zip(newest, values, strict=True):
            torch.where(value > 0, value, variance, out=variance)

    def state_dict(self) -> dict[str, Any]:
        return {"variances": dict(self.variances)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.variances = dict(state.get("variances", {}))  # another recipe's dense phase saves none


def _groups(masks: Masks, optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], list[Weight]]]:
    """The optimizer's groups of parameters that have pruned weights, with these."""
    for group in optimizer.param_groups:
        members = {id(parameter) for parameter in group["params"]}
        if weights := [weight for weight in masks.pruned if id(weight.parameter) in members]:
            yield group, weights


def _is_adam(optimizer: Optimizer) -> bool:
    return "betas" in optimizer.defaults
