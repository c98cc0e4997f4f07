"""SR-STE recomputes the masks at every step, while the pruned weights keep learning.

Forward and backward passes, validation and checkpoints see the sparse weights. The remembered values of the pruned weights are restored
just before the optimizer steps, and removed again after the step. The gradient of the sparse weights is applied unchanged to the dense
ones (the straight-through estimator), and pruned weights decay towards zero by λ, so that the masks settle. Source: Zhou et al., Learning
N:M Fine-grained Structured Sparse Neural Networks From Scratch, arXiv:2102.04010.

Under Adam, changing masks make the gradients of the second moment noisy, and the second moment would also divide the decay. Three things
therefore differ (Lu et al., STEP, arXiv:2302.01172):

* The decay is decoupled, as in AdamW: w ← w - lr · λ · (1 - mask) · w, and no moment sees it. Under SGD it is part of the gradient, as
  published.
* After a dense phase (`sparsity.start` above 0) the second moment of the pruned layers keeps its value from the dense phase. STEP ignores
  the newest gradient; here the newest gradient counts for its own step.
* A weight that hardly saw a gradient in the dense phase, as behind a ReLU that was never active, keeps Adam's own second moment. The
  momentum of its first gradient, divided by a value near zero in the steps that follow, would move it without bound.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.sparsity.layers import Weight
from mpx.sparsity.masks import Masks
from mpx.sparsity.recipes import Plan, Recipe


class SrSte(Recipe):
    """decay: λ. plan.every: steps between two computations of the masks; None: 1."""

    fixed = False

    def __init__(self, plan: Plan, *, decay: float):
        super().__init__("sr_ste", plan, remember=True)
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
                torch._foreach_add_(list(grads.values()), [masks.stash[name] for name in grads], alpha=self.decay)

    @torch.no_grad()
    def after_step(self, step: int, masks: Masks, optimizers: Sequence[Optimizer], skipped: Tensor | None) -> None:
        for optimizer in filter(_is_adam, optimizers):
            for group, weights in _groups(masks, optimizer):
                self._decay(masks, group["lr"], weights, skipped)
                self._restore(optimizer, group["betas"][1], weights)
        if (step - self.plan.start) % (self.plan.every or 1) == 0:
            masks.compute()
        masks.apply()

    def _decay(self, masks: Masks, lr: Any, weights: list[Weight], skipped: Tensor | None) -> None:
        rate = lr * self.decay
        if isinstance(rate, Tensor):  # a number stays one, since its way to the device would wait for the steps before
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
                    held.masked_fill_(held < (1 - beta) * held.mean(), 0)  # the mean: a gradient of the layer's usual size

    def _restore(self, optimizer: Optimizer, beta: float, weights: list[Weight]) -> None:
        """Put the kept second moments, with the bias of this step, in the place of the optimizer's."""
        held = [weight for weight in weights if weight.name in self.variances and weight.parameter in optimizer.state]
        if not held:
            return
        states = [optimizer.state[weight.parameter] for weight in held]
        newest = [state["exp_avg_sq"] for state in states]
        for weight, variance in zip(held, newest, strict=True):
            self.variances[weight.name] = self.variances[weight.name].to(variance)  # those of a checkpoint are on the host
        steps = torch.stack([state["step"] for state in states]).to(newest[0].device)  # in one copy, since they may be on the host
        values = torch._foreach_mul([self.variances[weight.name] for weight in held], (1 - beta**steps).unbind())
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
