"""Holding masks at every optimizer.step(), by torch's step hooks: nothing of the optimizer is replaced."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakMethod, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpx.compat.amp.casting import MASTER, agreeing
from mpx.compat.asp.eligible import Place
from mpx.private.torch_dispatch import version


class Hold:
    """Zeroes pruned gradients before a step, and pruned weights and their optimizer state after it, of what the optimizer steps.

    Weights of another attached optimizer are left alone: a graph may hold them that is yet to be differentiated. Weights of none are
    zeroed at every step, as apex does, to which one optimizer can be attached.

    masks: by the places' names, True stays; empty or all of them. Zeros are selected, not multiplied: infinite × 0 would be NaN.
    before_step: a method, called first at every step. A step that a GradScaler skips is not made, and nothing is done. Optimizers that
    are attached keep this object alive, not it them.
    """

    def __init__(self, places: list[Place], before_step: Callable[[], None]):
        self.places = places
        self.masks: dict[str, Tensor] = {}
        self._before_step = WeakMethod(before_step)  # of the object that holds this one
        self._attached: list[tuple[ref[Optimizer], list[Any]]] = []  # optimizer, handles of its hooks
        self._claimed: set[str] = set()  # names of the places that an attached optimizer has
        self._versions: dict[int, int] = {}  # by id of a tensor: autograd's count of its changes when it was zeroed last

    def tensors(self, places: Iterable[Place] | None = None) -> Iterator[tuple[Tensor, Tensor, str]]:
        """(weight or master weight, its mask on its device, name) of these places, by default all, while masks are in force."""
        for place in (self.places if places is None else places) if self.masks else ():
            mask, parameter = self.masks[place.name], place.parameter
            if mask.device != parameter.device:
                mask = self.masks[place.name] = mask.to(parameter.device)
            for tensor in versions(parameter):
                yield tensor, mask, place.name

    def optimizers(self) -> list[Optimizer]:
        return [optimizer for attached, _ in self._attached if (optimizer := attached()) is not None]

    def stepped_by(self, optimizer: Optimizer) -> list[Place]:
        """The places whose weight, or its master weight, this optimizer has."""
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [place for place in self.places if any(id(tensor) in known for tensor in versions(place.parameter))]

    def _claim(self, optimizer: Optimizer) -> list[Place]:
        """The places that it steps, which may be more than when it was attached."""
        own = self.stepped_by(optimizer)
        self._claimed.update(place.name for place in own)
        return own

    def attach(self, optimizer: Optimizer) -> None:
        """Once per optimizer; again does nothing."""
        if any(known is optimizer for known in self.optimizers()):
            return
        handles = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]
        self._attached.append((ref(optimizer), handles))
        self._zero(self._claim(optimizer), [optimizer])

    def detach(self) -> None:
        for _, handles in self._attached:
            for handle in handles:
                handle.remove()
        self._attached.clear()

    def everything(self) -> None:
        """Zero weights and the state of all optimizers: for masks that have just come into force."""
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
        """The places of no attached optimizer."""
        return [place for place in self.places if place.name not in self._claimed]

    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """A closure makes its gradients inside the step, so it is handed on with the masking behind it. args: (optimizer, closure, …)."""
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
        """Zeros over zeros go through .data, as no change to a graph that holds the weight; a true change is one that autograd notices."""
        for tensor, mask, _ in self.tensors(self.unclaimed()):
            same = version(tensor) == self._versions.get(id(tensor))
            (tensor.data if same else tensor).masked_fill_(~mask, 0)
            self._versions[id(tensor)] = version(tensor)


def exact(weight: Tensor) -> Tensor:
    """The weight's values, as precise as they are kept."""
    return weight.detach() if getattr(weight, MASTER, None) is None else agreeing(weight)


def versions(weight: Tensor) -> list[Tensor]:
    """The weight, and its FP32 master weight where mpx.compat.amp keeps one."""
    master = getattr(weight, MASTER, None)
    return [weight] if master is None else [weight, master]
