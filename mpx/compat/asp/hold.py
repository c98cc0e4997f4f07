"""Holding masks at every optimizer.step(), by torch's step hooks: nothing of the optimizer is replaced."""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.compat.amp.casting import MASTER
from mpx.compat.asp.eligible import Place


class Hold:
    """Zeroes pruned gradients before a step, and pruned weights and their optimizer state after it.

    masks: by the places' names, True stays; empty or all of them. Zeros are selected, not multiplied: infinite × 0 would be NaN.
    A step that a GradScaler skips is not made, and nothing is done. Optimizers that are attached keep this object alive, not it them.
    """

    def __init__(self, places: list[Place]):
        self.places = places
        self.masks: dict[str, Tensor] = {}
        self._attached: list[tuple[ref[Optimizer], list[Any]]] = []  # optimizer, handles of its hooks

    def tensors(self) -> Iterator[tuple[Tensor, Tensor, str]]:
        """(weight or master weight, its mask on its device, name) of every mask in force."""
        for place in self.places if self.masks else ():
            mask = self.masks[place.name]
            if mask.device != place.parameter.device:
                mask = self.masks[place.name] = mask.to(place.parameter.device)
            for tensor in versions(place):
                yield tensor, mask, place.name

    def optimizers(self) -> list[Optimizer]:
        return [optimizer for attached, _ in self._attached if (optimizer := attached()) is not None]

    def attach(self, optimizer: Optimizer) -> None:
        """Once per optimizer; again does nothing."""
        if any(known is optimizer for known in self.optimizers()):
            return
        handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]
        self._attached.append((ref(optimizer), handles))
        self._zero(optimizer)

    def detach(self) -> None:
        for _, handles in self._attached:
            for handle in handles:
                handle.remove()
        self._attached.clear()

    def everything(self) -> None:
        """Zero weights and the state of all optimizers: for masks that have just come into force."""
        self._zero(*self.optimizers())

    @torch.no_grad()
    def gradients(self) -> None:
        for tensor, mask, _ in self.tensors():
            if tensor.grad is not None:
                tensor.grad.masked_fill_(~mask, 0)

    @torch.no_grad()
    def _zero(self, *optimizers: Optimizer) -> None:
        for tensor, mask, _ in self.tensors():
            pruned = ~mask
            tensor.masked_fill_(pruned, 0)
            for optimizer in optimizers:
                for value in optimizer.state.get(tensor, {}).values():
                    if isinstance(value, Tensor) and value.shape == tensor.shape:
                        value.masked_fill_(pruned.to(value.device), 0)

    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """A closure makes its gradients inside the step, so it is handed on with the masking behind it. args: (optimizer, closure, …)."""
        self.gradients()
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._masked(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": self._masked(kwargs["closure"])}
        return None

    def _masked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def masked() -> Any:
            loss = closure()
            self.gradients()
            return loss

        return masked

    def _after(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        self._zero(optimizer)


def versions(place: Place) -> list[Tensor]:
    """The parameter, and its FP32 master weight where mpx.compat.amp keeps one."""
    master = getattr(place.parameter, MASTER, None)
    return [place.parameter] if master is None else [place.parameter, master]
