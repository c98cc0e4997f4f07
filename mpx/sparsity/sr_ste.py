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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.shards import local
from mpx.sparsity.layers import Weight
from mpx.sparsity.masks import Masks
from mpx.sparsity.plan import Plan
from mpx.sparsity.recipes import Recipe


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

    def on_gradients(self, masks: Masks, optimizer: Optimizer) -> None:
        masks.restore()
        if not _is_adam(optimizer):
            own = _among(masks, [parameter for group in optimizer.param_groups for parameter in group["params"]])
            trained = [weight for weight in own if weight.parameter.grad is not None]
            grads, stash = [weight.parameter.grad for weight in trained], [masks.stash[weight.name] for weight in trained]
            torch._foreach_add_(grads, stash, alpha=self.decay)

    @torch.no_grad()
    def after_step(self, step: int, masks: Masks, optimizers: Sequence[Optimizer], skipped: Tensor | None) -> None:
        for optimizer in filter(_is_adam, optimizers):
            self._decay(masks, optimizer, skipped)
            self._restore(masks, optimizer)
        if (step - self.plan.start) % (self.plan.every or 1) == 0:
            masks.compute()
        masks.apply()

    def _decay(self, masks: Masks, optimizer: Optimizer, skipped: Tensor | None) -> None:
        for group in optimizer.param_groups:
            if not (ours := _among(masks, group["params"])):
                continue
            rate = group["lr"] * self.decay
            if isinstance(rate, Tensor):  # a number stays one, since its way to the device would wait for the steps before
                rate = rate.to(ours[0].parameter.device)
            less = torch._foreach_mul([masks.stash[weight.name] for weight in ours], rate if skipped is None else rate * ~skipped)
            torch._foreach_sub_([weight.parameter for weight in ours], less)

    def _hold(self, masks: Masks, optimizer: Optimizer) -> None:
        betas = _betas(optimizer)
        for weight in masks.pruned:
            state = optimizer.state.get(weight.parameter, {})
            if "exp_avg_sq" in state and (beta := betas.get(id(weight.parameter))) is not None:
                self.variances[weight.name] = held = state["exp_avg_sq"] / (1 - beta ** state["step"])
                one_gradient = (1 - beta) * local(held).mean()  # what a gradient of the layer's usual size would add
                local(held).masked_fill_(local(held) < one_gradient, 0)

    def _restore(self, masks: Masks, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            known = [weight for weight in _among(masks, group["params"]) if weight.name in self.variances]
            held = [weight for weight in known if weight.parameter in optimizer.state]
            if not held:
                continue
            states = [optimizer.state[weight.parameter] for weight in held]
            newest = [local(state["exp_avg_sq"]) for state in states]
            for weight, variance in zip(held, newest, strict=True):
                self.variances[weight.name] = self.variances[weight.name].to(variance)  # those of a checkpoint are on the host
            steps = torch.stack([state["step"] for state in states]).to(newest[0].device)  # in one copy, since they may be on the host
            biases = (1 - group["betas"][1] ** steps).unbind()
            values = torch._foreach_mul([local(self.variances[weight.name]) for weight in held], biases)
            for variance, value in zip(newest, values, strict=True):
                torch.where(value > 0, value, variance, out=variance)

    def state_dict(self) -> dict[str, Any]:
        return {"variances": dict(self.variances)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.variances = dict(state.get("variances", {}))  # another recipe's dense phase saves none


def _among(masks: Masks, parameters: Sequence[Tensor]) -> list[Weight]:
    """The pruned weights that these parameters are."""
    members = {id(parameter) for parameter in parameters}
    return [weight for weight in masks.pruned if id(weight.parameter) in members]


def _is_adam(optimizer: Optimizer) -> bool:
    return "betas" in optimizer.defaults


def _betas(optimizer: Optimizer) -> dict[int, float]:
    """By the id of a parameter: that of its group's second moment."""
    return {id(parameter): group["betas"][1] for group in optimizer.param_groups for parameter in group["params"]}
