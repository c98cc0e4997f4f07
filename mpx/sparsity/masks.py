"""Masks in force: pruned weights, their gradients and their optimizer state are exactly zero, at every step and in every format.

Zeros are written by selection and not by multiplication: an overflowed gradient × 0 would be NaN, a negative weight × 0 is -0.
Nothing here waits for the device but `prune`, `verify` and what describes a finished run.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern, kept_magnitude, laid_out_as
from mpx.sparsity.unstructured import largest


class Masks:
    """The masks of one model. Empty (`active` False) until `prune`, `compute` or `load_state_dict` is called.

    remember: keep the values that are pruned, so that they compete again when the masks are computed anew.
    """

    def __init__(self, weights: list[Weight], pattern: Pattern, *, remember: bool = False):
        self.weights, self.pattern, self.remember = weights, pattern, remember
        self.masks: dict[str, Tensor] = {}  # True stays
        self.kept: dict[str, float] = {}  # share of the magnitude that stayed at the pruning
        self.stash: dict[str, Tensor] = {}  # remembered values where pruned, zero elsewhere
        self.complete = False  # the masks are the whole pattern, not a step on the way to it
        self._away: dict[str, Tensor] = {}  # True is pruned

    @property
    def active(self) -> bool:
        return bool(self.masks)

    @property
    def pruned(self) -> list[Weight]:
        return [weight for weight in self.weights if weight.reason is None]

    @torch.no_grad()
    def prune(self, optimizers: Iterable[Optimizer], share: float = 1.0) -> None:
        """Compute the masks from the weights as they are, with what was remembered, and put them in force.

        share: how much of what the pattern prunes is pruned, the smallest of each layer first, 0 to 1.
        """
        self.release()
        parameters = [weight.parameter for weight in self.pruned]
        masks = [
            _partly(mask, parameter, share) if share < 1 else mask
            for mask, parameter in zip(self.pattern.masks(parameters), parameters, strict=True)
        ]
        for weight, mask in zip(self.pruned, masks, strict=True):
            before = 1.0 if self.remember else self.kept.get(weight.name, 1.0)
            self.kept[weight.name] = before * kept_magnitude(weight.parameter, mask)
        self._set(masks, complete=share == 1)
        self.put_away()
        for optimizer in optimizers:
            self.zero_state(optimizer)

    @torch.no_grad()
    def compute(self) -> None:
        """As `prune`, but leaves the optimizers alone and never waits for the device: for masks that move at every step."""
        parameters = [weight.parameter for weight in self.pruned]
        self._set(self.pattern.masks(parameters, compiled=parameters[0].is_cuda), complete=True)

    def _set(self, masks: list[Tensor], *, complete: bool) -> None:
        names = [weight.name for weight in self.pruned]
        self.masks, self.complete = dict(zip(names, masks, strict=True)), complete
        self._away = {name: ~mask for name, mask in self.masks.items()}

    @torch.no_grad()
    def put_away(self) -> None:
        """Zero the pruned weights, remembering their values if this recipe does."""
        for weight in self.pruned:
            if self.remember:
                self.stash[weight.name] = weight.parameter.masked_fill(self.masks[weight.name], 0)
            weight.parameter.masked_fill_(self._away[weight.name], 0)

    @torch.no_grad()
    def release(self) -> None:
        """Give the pruned weights their remembered values back; exact, since they are zero."""
        if self.stash:
            torch._foreach_add_([weight.parameter for weight in self.pruned], [self.stash[weight.name] for weight in self.pruned])

    @torch.no_grad()
    def zero_state(self, optimizer: Optimizer) -> None:
        """Zero the optimizer's state (momentum, Adam's moments) of pruned weights."""
        for weight, value, _ in self._states([optimizer]):
            value.masked_fill_(self._away[weight.name].to(value.device), 0)  # after training Lightning has taken it to the CPU

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Zero the gradients of pruned weights, also infinite and NaN ones. With zero state and gradient no optimizer moves a zero."""
        for weight in self.pruned:
            if weight.parameter.grad is not None:
                weight.parameter.grad.masked_fill_(self._away[weight.name], 0)

    @torch.no_grad()
    def mask_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Zero pruned positions of averages of the weights, by parameter name."""
        for name, away in self._away.items():
            averages[name].masked_fill_(away.to(averages[name].device), 0)

    def verify(self, optimizers: Iterable[Optimizer] = ()) -> list[str]:
        """What is not as promised, by name; empty when all is well. Waits for the device once.

        Weights: have the pattern, and are zero where pruned. optimizers: their state is zero there too.
        """
        names, flags = [], []
        for weight in self.pruned:
            away = self._away[weight.name].to(weight.parameter.device)  # Lightning moves a model back to the CPU at the end
            broken = (weight.parameter.detach().ne(0) & away).any()
            names.append(weight.name)
            flags.append(broken | ~self.pattern.holds(weight.parameter) if self.complete else broken)
        for weight, value, key in self._states(optimizers):
            names.append(f"{weight.name} ({key})")
            flags.append((value.ne(0) & self._away[weight.name].to(value.device)).any())
        if not flags:
            return []
        found = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
        return [name for name, bad in zip(names, found, strict=True) if bad]

    def _states(self, optimizers: Iterable[Optimizer]) -> Iterable[tuple[Weight, Tensor, str]]:
        """Every tensor of a pruned weight's shape in the optimizers' state."""
        for optimizer in optimizers:
            for weight in self.pruned:
                for key, value in optimizer.state.get(weight.parameter, {}).items():
                    if isinstance(value, Tensor) and value.shape == weight.parameter.shape:
                        yield weight, value, key

    def state_dict(self) -> dict[str, Any]:
        return {"masks": dict(self.masks), "kept": dict(self.kept), "stash": dict(self.stash), "complete": self.complete}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the masks of `state`, on the devices of the weights. Lightning calls this before it moves them; see `follow`."""
        self.masks, self.kept, self.complete = dict(state["masks"]), dict(state["kept"]), state["complete"]
        self.stash = dict(state["stash"])
        self.follow()

    def follow(self) -> None:
        """Move masks and remembered values to where the weights are, and lay them out alike."""
        for weight in self.pruned if self.active else ():
            device, name = weight.parameter.device, weight.name
            self.masks[name] = laid_out_as(self.masks[name].to(device), weight.parameter)
            self._away[name] = ~self.masks[name]
            if name in self.stash:
                self.stash[name] = torch.empty_like(weight.parameter).copy_(self.stash[name])


def _partly(mask: Tensor, weight: Tensor, share: float) -> Tensor:
    """Prune only `share` of what the mask prunes: the smallest magnitudes; among equals the earlier stays."""
    pruned = ~mask
    kept = largest(weight.detach()[pruned], round((1 - share) * int(pruned.sum())))
    return laid_out_as(mask.masked_scatter(pruned, kept), weight)
