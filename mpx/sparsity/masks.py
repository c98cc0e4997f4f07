"""Enforcement of masks. Once they are fixed, pruned weights, their gradients and their optimizer state are
exactly zero, in every format.

Zeros are selected, not multiplied: an overflowed gradient × 0 would be NaN, and a negative weight × 0 is -0.
Only `prune`, `verify` and the reports on a finished run wait for the device.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from mpx.errors import UserError
from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern, kept_magnitude, laid_out_as, largest

# state of Adamax and Rprop: it bounds the steps, and moves no weight without a gradient
NEVER_ZERO = ("exp_inf", "step_size")


class Masks:
    """The masks of one model. Empty (`active` False) until `prune`, `compute` or `load_state_dict` is called.

    remember: keep the pruned values, which `restore` puts back so that they compete again. version:
    counts up when tensors that a training step reads are replaced, so that a CUDA graph of the step is
    recorded again. What `compute` replaces, a step with SR-STE replaces itself.
    """

    def __init__(self, weights: list[Weight], pattern: Pattern, *, remember: bool = False):
        self.weights, self.pattern, self.remember = weights, pattern, remember
        # also before their masks are computed
        self.pruned = [weight for weight in weights if weight.reason is None]
        self.masks: dict[str, Tensor] = {}  # True stays
        self.kept: dict[str, float] = {}  # share of the magnitude that the pruning kept
        self.stash: dict[str, Tensor] = {}  # remembered values where pruned, zero elsewhere
        self.complete = False  # the masks are the full pattern, not an intermediate step of gradual pruning
        self.version = 0
        self._inverted: dict[str, Tensor] = {}  # True is pruned

    @property
    def active(self) -> bool:
        return bool(self.masks)

    @torch.no_grad()
    def prune(self, optimizers: Iterable[Optimizer], share: float = 1.0) -> None:
        """Compute the masks from the current weights, and apply them.

        share: fraction (0 to 1) of the pattern's pruning to do, the smallest values of each layer first.
        """
        masks = self._chosen()
        for i, weight in enumerate(self.pruned):
            if share < 1:
                masks[i] = _partly(masks[i], weight.parameter, share)
            before = self.kept.get(weight.name, 1.0)
            self.kept[weight.name] = before * kept_magnitude(weight.parameter, masks[i])
        self._set(masks, complete=share == 1)
        self.version += 1
        self.apply()
        for optimizer in optimizers:
            self.zero_state(optimizer)

    @torch.no_grad()
    def compute(self) -> None:
        """Compute the masks without applying them. Never waits for the device, since SR-STE calls it at every
        step.
        """
        self._set(self._chosen(compiled=self.pruned[0].parameter.is_cuda), complete=True)

    def _chosen(self, *, compiled: bool = False) -> list[Tensor]:
        return self.pattern.masks([weight.parameter for weight in self.pruned], compiled=compiled)

    def _set(self, masks: list[Tensor], *, complete: bool) -> None:
        names = [weight.name for weight in self.pruned]
        self.masks, self.complete = dict(zip(names, masks, strict=True)), complete
        self._inverted = {name: ~mask for name, mask in self.masks.items()}

    @torch.no_grad()
    def apply(self) -> None:
        """Zero the pruned weights. Remember their values first if `remember` is set, in place, where a CUDA
        graph finds them.
        """
        if self.remember:
            if not self.stash:
                self.stash = {
                    weight.name: torch.empty_like(weight.parameter, requires_grad=False)
                    for weight in self.pruned
                }
                self.version += 1
            stash = [self.stash[weight.name] for weight in self.pruned]
            torch._foreach_copy_(stash, [weight.parameter for weight in self.pruned])
            for weight, values in zip(self.pruned, stash, strict=True):
                values.masked_fill_(self.masks[weight.name], 0)
        for weight in self.pruned:
            weight.parameter.masked_fill_(self._inverted[weight.name], 0)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the remembered values of the pruned weights. Adding them is exact, since the weights are
        zero there.
        """
        if self.stash:
            values = [weight.parameter for weight in self.pruned]
            torch._foreach_add_(values, [self.stash[weight.name] for weight in self.pruned])

    @torch.no_grad()
    def zero_state(self, optimizer: Optimizer) -> None:
        """Zero the optimizer's state (momentum, Adam's moments) of pruned weights."""
        for weight, value, _ in self._states([optimizer]):
            value.masked_fill_(self._inverted[weight.name].to(value.device), 0)  # on the CPU after training

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Zero the gradients of pruned weights, including infinities and NaN. With a zero state no optimizer
        then changes a zero weight.
        """
        for weight in self.pruned:
            if weight.parameter.grad is not None:
                weight.parameter.grad.masked_fill_(self._inverted[weight.name], 0)

    @torch.no_grad()
    def mask_averages(self, averages: Mapping[str, Tensor]) -> None:
        """Zero the pruned positions of weight averages, by parameter name. Before the pruning no position is
        pruned.
        """
        for name, inverted in self._inverted.items():
            averages[name].masked_fill_(inverted.to(averages[name].device), 0)

    def verify(self, optimizers: Iterable[Optimizer] = ()) -> list[str]:
        """Names of the tensors that break the masks; empty when none does. Waits for the device once.

        A weight must have the pattern and be zero where it is pruned. The state of `optimizers` that moves
        weights must be zero there, too.
        """
        names, flags = [], []
        for weight in self.pruned:
            values = weight.parameter.detach()
            # Lightning moves the model to the CPU after training
            inverted = self._inverted[weight.name].to(values.device)
            broken = (values.ne(0) & inverted).any()
            names.append(weight.name)
            flags.append(broken | ~self.pattern.holds(values) if self.complete else broken)
        for weight, value, key in self._states(optimizers):
            if key not in NEVER_ZERO:
                names.append(f"{weight.name} ({key})")
                flags.append((value.ne(0) & self._inverted[weight.name].to(value.device)).any())
        if not flags:
            return []
        bad = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
        return [name for name, one in zip(names, bad, strict=True) if one]

    def _states(self, optimizers: Iterable[Optimizer]) -> Iterator[tuple[Weight, Tensor, str]]:
        """The tensors in the optimizers' state that have the shape of their pruned weight."""
        for optimizer in optimizers:
            for weight in self.pruned:
                for key, value in optimizer.state.get(weight.parameter, {}).items():
                    if isinstance(value, Tensor) and value.shape == weight.parameter.shape:
                        yield weight, value, key

    def state_dict(self) -> dict[str, Any]:
        return {
            "masks": dict(self.masks),
            "kept": dict(self.kept),
            "stash": dict(self.stash),
            "complete": self.complete,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the masks, on the weights' current devices. Lightning calls this before it moves the
        weights; see `bind`.

        Raises ValueError for masks that are not of these weights.
        """
        masks, shapes = dict(state["masks"]), {weight.name: weight.parameter.shape for weight in self.pruned}
        for name in [*masks, *shapes] if masks else ():
            if name not in masks or shapes.get(name) != masks[name].shape or masks[name].dtype != torch.bool:
                raise ValueError(f"its mask of {name} does not fit this model")
        self.masks, self.complete, self.stash = masks, state["complete"], dict(state["stash"])
        self.kept = {name: float(kept) for name, kept in state["kept"].items()}
        self._inverted = {}
        self._follow()

    def bind(self, model: nn.Module | Mapping[str, Tensor]) -> None:
        """Mask the parameters that `model` has: a strategy, or the module itself, may have replaced or moved
        them.

        model: also the tensors that the optimizers step, by the names of the parameters.
        Raises UserError for a pruned weight that is gone, has another shape, or is spread over several
        processes.
        """
        current = (
            dict(model.named_parameters(remove_duplicate=False)) if isinstance(model, nn.Module) else model
        )
        for weight in self.weights:
            parameter = current.get(weight.name)
            if weight.reason is None and (parameter is None or parameter.shape != weight.parameter.shape):
                raise UserError(
                    f"the model no longer has {weight.name} in the shape in which it was pruned. Replace a "
                    "layer before the training, or leave it dense with sparsity.skip."
                )
            if isinstance(parameter, DTensor):
                raise UserError(
                    f"sparsity={self.pattern.name}: {weight.name} is sharded over processes. "
                    "Use DDP, or sparsity=dense."
                )
            weight.parameter = weight.parameter if parameter is None else parameter
        self._follow()

    def _follow(self) -> None:
        """Move masks and remembered values to the weights' devices and memory layout."""
        for weight in self.pruned if self.active else ():
            parameter, name = weight.parameter, weight.name
            mask = laid_out_as(self.masks[name].to(parameter.device), parameter)
            if mask is not self.masks[name] or name not in self._inverted:
                self.masks[name], self._inverted[name] = mask, ~mask
                self.version += 1
            if name in self.stash and (moved := _as(self.stash[name], parameter)) is not self.stash[name]:
                self.stash[name] = moved
                self.version += 1


def _as(values: Tensor, parameter: Tensor) -> Tensor:
    """The values on the parameter's device, in its format and memory layout; the same tensor if they are."""
    same = values.device == parameter.device and values.dtype == parameter.dtype
    if same and values.stride() == parameter.stride():
        return values
    return torch.empty_like(parameter, requires_grad=False).copy_(values)


def _partly(mask: Tensor, weight: Tensor, share: float) -> Tensor:
    """A mask that prunes only `share` of what `mask` prunes: the smallest magnitudes. Among equal magnitudes
    the earlier one stays.
    """
    pruned = ~mask
    kept = largest(weight.detach()[pruned], round((1 - share) * int(pruned.sum())))
    return laid_out_as(mask.masked_scatter(pruned, kept), weight)
