"""Enforce masks at every optimizer.step() through torch's step hooks, without replacing methods of the optimizer."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.compat.amp.casting import MASTER, agreeing
from mpx.compat.asp.eligible import Place
from mpx.private.torch_dispatch import version


class Enforcer:
    """Zeroes pruned gradients before an optimizer's step, and its pruned weights and their state after it.

    Weights of other attached optimizers do not change, since a graph that is not yet differentiated may hold them. Weights without an
    attached optimizer are zeroed at every step, as in apex, which supports only one optimizer.

    masks: by name of the place, True stays; empty, or one for every place. Zeros are selected, not multiplied: infinite × 0 would be NaN.
    before_step: a method that is called first at every step. Steps that a GradScaler skips call nothing. Attached optimizers keep this
    object alive, not the reverse.
    """

    def __init__(self, places: list[Place], before_step: Callable[[], None]):
        self.places = places
        self.masks: dict[str, Tensor] = {}
        self._before_step = WeakMethod(before_step)  # weak, since its object owns this one
        self._attached: list[tuple[ref[Optimizer], list[Any]]] = []  # optimizer, handles of its hooks
        self._claimed: set[str] = set()  # names of the places whose weights an attached optimizer has
        self._versions: dict[int, int] = {}  # id of a tensor -> autograd's version counter when it was last zeroed

    def tensors(self, places: Iterable[Place] | None = None) -> Iterator[tuple[Tensor, Tensor, str]]:
        """(weight or master weight, its mask on its device, name) of these places, by default all. Nothing without masks."""
        for place in (self.places if places is None else places) if self.masks else ():
            mask, parameter = self.masks[place.name], place.parameter
            if mask.device != parameter.device:
                mask = self.masks[place.name] = mask.to(parameter.device)
            for tensor in with_master(parameter):
                yield tensor, mask, place.name

    def optimizers(self) -> list[Optimizer]:
        return [optimizer for attached, _ in self._attached if (optimizer := attached()) is not None]

    def stepped_by(self, optimizer: Optimizer) -> list[Place]:
        """The places whose weight or master weight this optimizer has."""
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [place for place in self.places if any(id(tensor) in known for tensor in with_master(place.parameter))]

    def _claim(self, optimizer: Optimizer) -> list[Place]:
        """The places that the optimizer steps now; it may have gained parameters since it was attached."""
        own = self.stepped_by(optimizer)
        self._claimed.update(place.name for place in own)
        return own

    def attach(self, optimizer: Optimizer) -> None:
        """Enforce the masks at this optimizer's steps. Does nothing if it is already attached."""
        if any(known is optimizer for known in self.optimizers()):
            return
        handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]
        self._attached.append((ref(optimizer), handles))
        self._zero(self._claim(optimizer), [optimizer])

    def detach(self) -> None:
        """Remove the hooks from the optimizers. Weights and optimizer state do not change."""
        for _, handles in self._attached:
            for handle in handles:
                handle.remove()
        self._attached.clear()

    def zero_all(self) -> None:
        """Zero the pruned weights and their state in all optimizers, for new masks."""
        self._zero(self.places, self.optimizers())

    @torch.no_grad()
    def _zero(self, places: list[Place], optimizers: list[Optimizer]) -> None:
        for tensor, mask, _ in self.tensors(places):
            pruned = ~mask
            tensor.masked_fill_(pruned, 0)
            self._versions[id(tensor)] = version(tensor)
            for optimizer in optimizers:
                for value in optimizer.state.get(tensor, {}).values():
                    if isinstance(value, Tensor) and value.shape == tensor.shape:
                        value.masked_fill_(pruned.to(value.device), 0)

    @torch.no_grad()
    def _zero_gradients(self, own: list[Place]) -> None:
        for tensor, mask, _ in self.tensors([*own, *self.unclaimed()]):
            if tensor.grad is not None:
                tensor.grad.masked_fill_(~mask, 0)

    def unclaimed(self) -> list[Place]:
        """The places without an attached optimizer."""
        return [place for place in self.places if place.name not in self._claimed]

    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """Pre-step hook. A closure computes its gradients inside the step, so it is wrapped to mask them. args: (optimizer, closure, …)."""
        own = self._claim(optimizer)
        if (call := self._before_step()) is not None:
            call()
        self._zero_gradients(own)
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._masked(args[1], own), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": self._masked(kwargs["closure"], own)}
        return None

    def _masked(self, closure: Callable[[], Any], own: list[Place]) -> Callable[[], Any]:
        def masked() -> Any:
            loss = closure()
            self._zero_gradients(own)
            return loss

        return masked

    def _after(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        self._zero(self.stepped_by(optimizer), [optimizer])
        self._zero_unclaimed()

    @torch.no_grad()
    def _zero_unclaimed(self) -> None:
        """Rewriting zeros goes through .data, so that a graph that holds the weight stays valid. Real changes stay visible to autograd."""
        for tensor, mask, _ in self.tensors(self.unclaimed()):
            same = version(tensor) == self._versions.get(id(tensor))
            (tensor.data if same else tensor).masked_fill_(~mask, 0)
            self._versions[id(tensor)] = version(tensor)


def full_precision(weight: Tensor) -> Tensor:
    """The weight's values, from the FP32 master weight if there is one."""
    return weight.detach() if getattr(weight, MASTER, None) is None else agreeing(weight)


def with_master(weight: Tensor) -> list[Tensor]:
    """The weight, and its FP32 master weight if mpx.compat.amp keeps one."""
    master = getattr(weight, MASTER, None)
    return [weight] if master is None else [weight, master]
