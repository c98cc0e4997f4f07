"""What amp adds to an optimizer: FP32 master weights, and a step that is skipped after an overflow.

step, zero_grad and add_param_group are replaced on the instance, as apex does, since LR schedulers and training loops call them there.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp.casting import HALVES, MASTER, agreeing
from mpx.compat.amp.session import Session, processes
from mpx.errors import UserError


class Stash:
    """What amp keeps for one optimizer, as `optimizer._amp_stash`."""

    def __init__(self, optimizer: Any, session: Session):
        self.optimizer, self.session = optimizer, session
        self.weights: dict[Tensor, Tensor] = {}  # master weight -> the model's FP16 weight
        self.settled = False  # master weights agree with the model, whatever was loaded or broadcast into it since initialize
        self.overflowed: dict[int, Tensor] = {}  # loss_id -> flag on the device, since the last step
        self.waiting: int | None = None  # loss_id of the passes whose gradients are still scaled (delay_unscale)
        self.kept: dict[Tensor, Tensor] = {}  # parameter -> unscaled gradient of earlier passes

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(the model's parameter, the optimizer's parameter); the same one where there is no master weight."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield self.weights.get(parameter, parameter), parameter

    def make_masters(self, group: dict[str, Any], fp16: set[Tensor]) -> None:
        """Put an FP32 master weight in the place of every parameter of `group` that is FP16, or is about to be (`fp16`)."""
        for i, weight in enumerate(group["params"]):
            if weight.dtype in HALVES or weight in fp16:
                master = weight.detach().clone().float().requires_grad_()
                if weight.grad is not None:
                    master.grad, weight.grad = weight.grad.float(), None
                if weight in self.optimizer.state:
                    self.optimizer.state[master] = self.optimizer.state.pop(weight)
                setattr(weight, MASTER, master)
                self.weights[master] = weight
                group["params"][i] = master

    @torch.no_grad()
    def settle(self) -> None:
        """Before the first backward pass: take over what was done to the FP16 weights since initialize.

        DistributedDataParallel has then sent the first process's FP16 weights to all others. Only their FP16 values agree, so all
        processes start from those.
        """
        if not self.settled:
            for master, weight in self.weights.items():
                master.copy_(weight if processes()[1] > 1 else agreeing(weight))
            self.settled = True

    def must_skip(self) -> bool:
        """Whether a pass since the last step overflowed. Waits for the device, once a step."""
        overflowed = [loss_id for loss_id, flag in self.overflowed.items() if flag.item()]
        self.overflowed.clear()
        if overflowed:
            scale = self.session.loss_scalers[overflowed[0]].loss_scale()
            self.session.say(f"Gradient overflow.  Skipping step, loss scaler {overflowed[0]} reducing loss scale to {scale}", once=False)
        return bool(overflowed)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        if self.weights:
            torch._foreach_copy_(list(self.weights.values()), list(self.weights))

    def clear_master_gradients(self) -> None:
        """model.zero_grad() does not know them."""
        for master in self.weights:
            master.grad = None


def attach(optimizer: Any, session: Session, fp16: set[Tensor]) -> None:
    """fp16: the parameters that are about to be cast to FP16."""
    stash = optimizer._amp_stash = Stash(optimizer, session)
    if session.properties.master_weights:
        for group in optimizer.param_groups:
            stash.make_masters(group, fp16)
        optimizer.zero_grad = MethodType(_zero_grad(optimizer.zero_grad), optimizer)
        optimizer.add_param_group = MethodType(_add_param_group(optimizer.add_param_group), optimizer)
    if not session.leaves_gradients_alone:
        optimizer.step = MethodType(_step(optimizer.step), optimizer)


def _step(plain: Callable) -> Callable:
    @wraps(plain)  # with the mark of an LR scheduler built before
    def step(self: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        stash = self._amp_stash
        loss = _evaluated(self, closure)
        if stash.must_skip():
            self._opt_called = True  # the LR scheduler would warn that it was called before the optimizer
        else:
            result = plain(**kwargs)
            loss = result if closure is None else loss
            stash.copy_to_model()
        stash.clear_master_gradients()
        return loss

    return step


def _evaluated(optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    """The closure's loss. Evaluated here, since only then it is known whether the step is to be skipped."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("amp: LBFGS evaluates its closure several times a step, which loss scaling cannot skip; use opt_level='O0'.")
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _zero_grad(plain: Callable) -> Callable:
    @wraps(plain)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        plain(set_to_none)
        for weight in self._amp_stash.weights.values():
            if weight.grad is not None:
                weight.grad = None if set_to_none else weight.grad.detach().zero_()

    return zero_grad


def _add_param_group(plain: Callable) -> Callable:
    @wraps(plain)
    def add_param_group(self: Any, group: dict[str, Any]) -> None:
        stash, known = self._amp_stash, set(self._amp_stash.weights.values())
        plain(group)
        added = self.param_groups[-1]
        if not known.isdisjoint(added["params"]):
            self.param_groups.pop()
            raise UserError("optimizer.add_param_group: some parameters appear in more than one parameter group.")
        stash.make_masters(added, set())

    return add_param_group
