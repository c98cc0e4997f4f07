"""Enforcement of masks. Once they are fixed, pruned weights, their gradients and their optimizer state are exactly zero, in every format.

Zeros are selected, not multiplied: an overflowed gradient × 0 would be NaN, and a negative weight × 0 is -0.
Only `prune`, `verify` and the reports on a finished run wait for the device.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpx.shards import agree, gathered, is_sharded, local, sharded_as, whole
from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern, kept_magnitude, laid_out_as
from mpx.sparsity.unstructured import largest

NEVER_ZERO = ("exp_inf", "step_size")  # state of Adamax and Rprop: it bounds the steps, and moves no weight that has no gradient


class Masks:
    """The masks of one model. Empty (`active` False) until `prune`, `compute` or `load_state_dict` is called.

    remember: keep the pruned values, so that they compete again when the masks are recomputed.
    """

    def __init__(self, weights: list[Weight], pattern: Pattern, *, remember: bool = False):
        self.weights, self.pattern, self.remember = weights, pattern, remember
        self.masks: dict[str, Tensor] = {}  # True stays
        self.kept: dict[str, float] = {}  # share of the magnitude that the pruning kept
        # Remembered values where pruned, zero elsewhere. Changes identity when its tensors are replaced, which forces a new recording.
        self.stash: dict[str, Tensor] = {}
        self.complete = False  # the masks are the full pattern, not an intermediate step of gradual pruning
        self._inverted: dict[str, Tensor] = {}  # True is pruned

    @property
    def active(self) -> bool:
        return bool(self.masks)

    @property
    def pruned(self) -> list[Weight]:
        """Those that the rules choose, also before their masks are computed."""
        return [weight for weight in self.weights if weight.reason is None]

    @property
    def sharded(self) -> bool:
        return any(is_sharded(weight.parameter) for weight in self.pruned)

    @torch.no_grad()
    def prune(self, optimizers: Iterable[Optimizer], share: float = 1.0) -> None:
        """Compute the masks from the current weights and the remembered values, and apply them.

        share: fraction (0 to 1) of the pattern's pruning to do, the smallest values of each layer first.
        """
        self.restore()
        masks = []
        for weight, values, full in self._chosen():
            mask = _partly(full, values, share) if share < 1 else full
            before = 1.0 if self.remember else self.kept.get(weight.name, 1.0)
            self.kept[weight.name] = before * kept_magnitude(values, mask)
            masks.append(sharded_as(mask, weight.parameter))
        self._set(masks, complete=share == 1)
        self.apply()
        for optimizer in optimizers:
            self.zero_state(optimizer)

    @torch.no_grad()
    def compute(self) -> None:
        """Compute the masks without applying them. Never waits for the device, since SR-STE calls it at every step."""
        chosen = self._chosen(compiled=self.pruned[0].parameter.is_cuda)
        self._set([sharded_as(mask, weight.parameter) for weight, _, mask in chosen], complete=True)

    def _chosen(self, *, compiled: bool = False) -> Iterator[tuple[Weight, Tensor, Tensor]]:
        """(weight, its values, mask): the pattern's choice from whole weights. Sharded ones are gathered one after the other."""
        for weights in [[weight] for weight in self.pruned] if self.sharded else [self.pruned]:
            values = [whole(weight.parameter) for weight in weights]
            yield from zip(weights, values, self.pattern.masks(values, compiled=compiled), strict=True)

    def _set(self, masks: list[Tensor], *, complete: bool) -> None:
        names = [weight.name for weight in self.pruned]
        self.masks, self.complete = dict(zip(names, masks, strict=True)), complete
        self._inverted = {name: ~mask for name, mask in self.masks.items()}

    @torch.no_grad()
    def apply(self) -> None:
        """Zero the pruned weights. Remember their values first if `remember` is set, in place, where a CUDA graph finds them."""
        pruned = self.pruned
        if self.remember:
            self.stash = self.stash or {weight.name: torch.empty_like(weight.parameter, requires_grad=False) for weight in pruned}
            stash = [local(self.stash[weight.name]) for weight in pruned]
            torch._foreach_copy_(stash, [local(weight.parameter) for weight in pruned])
            for weight, values in zip(pruned, stash, strict=True):
                values.masked_fill_(local(self.masks[weight.name]), 0)
        for weight in pruned:
            local(weight.parameter).masked_fill_(local(self._inverted[weight.name]), 0)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the remembered values of the pruned weights. Adding them is exact, since the weights are zero there."""
        if self.stash:
            values = [local(weight.parameter) for weight in self.pruned]
            torch._foreach_add_(values, [local(self.stash[weight.name]) for weight in self.pruned])

    @torch.no_grad()
    def zero_state(self, optimizer: Optimizer) -> None:
        """Zero the optimizer's state (momentum, Adam's moments) of pruned weights."""
        for weight, value, _ in self._states([optimizer]):
            local(value).masked_fill_(local(self._inverted[weight.name]).to(value.device), 0)  # on the CPU after training

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Zero the gradients of pruned weights, including infinities and NaN. With a zero state no optimizer then changes a zero weight."""
        for weight in self.pruned:
            if weight.parameter.grad is not None:
                local(weight.parameter.grad).masked_fill_(local(self._inverted[weight.name]), 0)

    @torch.no_grad()
    def mask_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Zero the pruned positions of weight averages, by parameter name. Before the pruning no position is pruned."""
        for name, inverted in self._inverted.items():
            local(averages[name]).masked_fill_(local(inverted).to(averages[name].device), 0)

    def verify(self, optimizers: Iterable[Optimizer] = ()) -> list[str]:
        """Names of the tensors that break the masks; empty when none does. Waits for the device once.

        A weight must have the pattern and be zero where it is pruned. The state of `optimizers` that moves weights must be zero there, too.
        """
        names, flags = [], []
        for weight in self.pruned:
            inverted = local(self._inverted[weight.name]).to(weight.parameter.device)  # Lightning moves the model to the CPU after training
            broken = (local(weight.parameter.detach()).ne(0) & inverted).any()
            names.append(weight.name)
            flags.append(broken | ~self.pattern.holds(whole(weight.parameter)) if self.complete else broken)
        for weight, value, key in self._states(optimizers):
            if key in NEVER_ZERO:
                continue
            names.append(f"{weight.name} ({key})")
            flags.append((local(value).ne(0) & local(self._inverted[weight.name]).to(value.device)).any())
        if not flags:
            return []
        found = torch.stack([flag.to(flags[0].device) for flag in flags]).int()
        agree(found, on=self.pruned[0].parameter)
        return [name for name, bad in zip(names, found.tolist(), strict=True) if bad]

    def _states(self, optimizers: Iterable[Optimizer]) -> Iterable[tuple[Weight, Tensor, str]]:
        """The tensors in the optimizers' state that have the shape of their pruned weight."""
        for optimizer in optimizers:
            for weight in self.pruned:
                for key, value in optimizer.state.get(weight.parameter, {}).items():
                    if isinstance(value, Tensor) and value.shape == weight.parameter.shape:
                        yield weight, value, key

    def state_dict(self) -> dict[str, Any]:
        masks, stash = ({name: gathered(value) for name, value in part.items()} for part in (self.masks, self.stash))
        return {"masks": masks, "kept": dict(self.kept), "stash": stash, "complete": self.complete}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the masks, on the weights' current devices. Lightning calls this before it moves the weights; see `follow`.

        Raises ValueError for masks that are not of these weights.
        """
        masks, shapes = dict(state["masks"]), {weight.name: weight.parameter.shape for weight in self.pruned}
        for name in [*masks, *shapes] if masks else ():
            if name not in masks or shapes.get(name) != masks[name].shape or masks[name].dtype != torch.bool:
                raise ValueError(f"its mask of {name} does not fit this model")
        for part in filter(None, (state["kept"], state["stash"])):
            if missing := masks.keys() - part.keys():
                raise ValueError(f"it lacks what was pruned of {min(missing)}")
        self.masks, self.complete, self.stash = masks, state["complete"], dict(state["stash"])
        self.kept = {name: float(kept) for name, kept in state["kept"].items()}
        self.follow()

    def adopt(self, model: nn.Module) -> None:
        """Mask the current parameters of `model`, since sharding replaces them."""
        for weight in self.weights:
            weight.parameter = model.get_parameter(weight.name)
        self.follow()

    def look_again(self, model: nn.Module) -> str | None:
        """Verify the parameters that `model` has now from here on: it may have replaced a layer. Returns the name of one that is gone."""
        current = dict(model.named_parameters(remove_duplicate=False))
        for weight in self.pruned:
            if weight.name not in current or current[weight.name].shape != weight.parameter.shape:
                return weight.name
            weight.parameter = current[weight.name]
        return None

    def follow(self) -> None:
        """Move masks and remembered values to the weights' devices, memory layout and shards."""
        loaded, self.stash = self.stash, {}  # a new identity, which forces a new recording
        for weight in self.pruned if self.active else ():
            parameter, name = weight.parameter, weight.name
            self.masks[name] = laid_out_as(sharded_as(self.masks[name].to(parameter.device), parameter), parameter)
            self._inverted[name] = ~self.masks[name]
            if name in loaded:
                self.stash[name] = torch.empty_like(parameter, requires_grad=False)
                local(self.stash[name]).copy_(local(sharded_as(loaded[name], parameter)))


def _partly(mask: Tensor, weight: Tensor, share: float) -> Tensor:
    """A mask that prunes only `share` of what `mask` prunes: the smallest magnitudes. Among equal magnitudes the earlier one stays."""
    pruned = ~mask
    kept = largest(weight.detach()[pruned], round((1 - share) * int(pruned.sum())))
    return laid_out_as(mask.masked_scatter(pruned, kept), weight)
