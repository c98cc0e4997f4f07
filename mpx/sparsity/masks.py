"""Masks in force: computed once, then held so that pruned weights, gradients and optimizer state stay exactly zero."""

from typing import Any

import torch
from torch import Tensor

from mpx.errors import UserError
from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import is_2of4, kept_magnitude, mask_2of4


class Masks:
    """The masks of one model. Empty (`active` False) until `prune` or `load` is called."""

    def __init__(self, weights: list[Weight]):
        self.weights = weights
        self.masks: dict[str, Tensor] = {}
        self.kept: dict[str, float] = {}

    @property
    def active(self) -> bool:
        return bool(self.masks)

    @property
    def pruned(self) -> list[Weight]:
        return [weight for weight in self.weights if weight.reason is None]

    @torch.no_grad()
    def prune(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Compute the masks from the weights as they are and apply them. Raises UserError where nothing can be pruned."""
        if not self.pruned:
            raise UserError(nothing_to_prune(self.weights))
        for weight in self.pruned:
            mask = mask_2of4(weight.parameter)
            self.kept[weight.name] = kept_magnitude(weight.parameter, mask)
            self.masks[weight.name] = mask
        self.apply(optimizers)

    @torch.no_grad()
    def apply(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Zero pruned weights and their optimizer state (momentum, Adam's moments)."""
        for weight in self.pruned:
            mask = self.masks[weight.name]
            weight.parameter.mul_(mask)
            for optimizer in optimizers:
                for value in optimizer.state.get(weight.parameter, {}).values():
                    if isinstance(value, Tensor) and value.shape == mask.shape:
                        value.mul_(mask)

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Zero the gradients of pruned weights. With zero state and gradient no optimizer moves a zero weight.

        An overflowed gradient is infinite or NaN; it is zeroed by selection, since inf × 0 is NaN.
        """
        for weight in self.pruned:
            if weight.parameter.grad is not None:
                weight.parameter.grad.masked_fill_(~self.masks[weight.name], 0.0)

    def verify(self) -> list[str]:
        """Names of weights that break the pattern or are not zero where their mask is; empty when all is well."""
        return [weight.name for weight in self.pruned if not is_2of4(weight.parameter) or self._away(weight).ne(0).any()]

    def _away(self, weight: Weight) -> Tensor:
        """The values that the mask prunes. Lightning moves a model back to the CPU at the end, so the mask follows it."""
        return weight.parameter.detach()[~self.masks[weight.name].to(weight.parameter.device)]

    def state_dict(self) -> dict[str, Any]:
        return {"masks": dict(self.masks), "kept": dict(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masks, self.kept = dict(state["masks"]), dict(state["kept"])

    def follow(self) -> None:
        """Move the masks to where the weights are."""
        for weight in self.pruned:
            if weight.name in self.masks:
                self.masks[weight.name] = self.masks[weight.name].to(weight.parameter.device)

    def coverage(self) -> list[dict[str, Any]]:
        """One row per weight: name, type, shape, pruned, reason, density (0 to 1), kept_magnitude (0 to 1)."""
        return [
            {
                "name": weight.name,
                "type": weight.type,
                "shape": list(weight.parameter.shape),
                "pruned": weight.name in self.masks,
                "reason": weight.reason if weight.reason or self.active else "the run ended before the pruning",
                "density": float((weight.parameter.detach() != 0).double().mean()),
                "kept_magnitude": self.kept.get(weight.name),
            }
            for weight in self.weights
        ]


def nothing_to_prune(weights: list[Weight]) -> str:
    reasons = "; ".join(f"{weight.name}: {weight.reason}" for weight in weights[:3]) or "no linear, convolution or recurrent layer"
    return f"sparsity=2of4 finds nothing to prune in this model ({reasons}). Use sparsity.shape_rule=any, a wider model, or sparsity=dense."
