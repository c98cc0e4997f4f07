"""Add amp to an optimizer: FP32 master weights, and a step that skips after an overflow.

step, zero_grad and add_param_group are replaced on the instance, as in apex, since schedulers and loops call
them there.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp.casts import HALVES, MASTER, agreeing
from mpx.compat.amp.state import Session
from mpx.errors import UserError
from mpx.system.processes import rank_and_world


class Stash:
    """amp's state for one optimizer, stored as `optimizer._amp_stash`."""

    def __init__(self, optimizer: Any, session: Session):
        self.optimizer, self.session = optimizer, session
        self.weights: dict[Tensor, Tensor] = {}  # master weight -> the model's FP16 weight
        # masters have the values of weights that were loaded or broadcast after initialize
        self.synchronized = False
        self.overflowed: dict[int, Tensor] = {}  # loss_id -> overflow flag on the device, since the last step
        self.scaled: int | None = None  # loss_id whose scale the gradients have

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(the model's parameter, the optimizer's parameter); the same object if there is no master
        weight.
        """
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                yield self.weights.get(parameter, parameter), parameter

    def make_masters(self, group: dict[str, Any], fp16: set[Tensor]) -> None:
        """Replace every parameter of `group` that is FP16, or will be (`fp16`), by an FP32 master weight."""
        for i, weight in enumerate(group["params"]):
            if weight.dtype in HALVES or weight in fp16:
                master = weight.detach().clone().float().requires_grad_()
                if weight in self.optimizer.state:
                    self.optimizer.state[master] = self.optimizer.state.pop(weight)
                setattr(weight, MASTER, master)
                self.weights[master] = weight
                group["params"][i] = master

    @torch.no_grad()
    def synchronize(self) -> None:
        """Before the first backward pass, update the master weights from FP16 weights that changed since
        initialize.

        With several processes, DistributedDataParallel has broadcast the first process's FP16 weights. Only
        those values agree between processes, so all processes start from them.
        """
        if not self.synchronized:
            for master, weight in self.weights.items():
                master.copy_(weight if rank_and_world()[1] > 1 else agreeing(weight))
            self.synchronized = True

    def must_skip(self) -> bool:
        """Whether a pass since the last step overflowed. Waits for the device once per step."""
        overflowed = [loss_id for loss_id, flag in self.overflowed.items() if flag.item()]
        self.overflowed.clear()
        if overflowed:
            scale = self.session.loss_scalers[overflowed[0]].loss_scale()
            self.session.say(
                f"Gradient overflow.  Skipping step, loss scaler {overflowed[0]} reducing "
                f"loss scale to {scale}"
            )
        return bool(overflowed)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        if self.weights:
            torch._foreach_copy_(list(self.weights.values()), list(self.weights))

    def clear_master_gradients(self) -> None:
        """Drop the gradients of master weights, which model.zero_grad() does not reach."""
        for master in self.weights:
            master.grad = None


def attach(optimizer: Any, session: Session, fp16: set[Tensor]) -> None:
    """Add amp to `optimizer`. fp16: the parameters that will be cast to FP16."""
    stash = optimizer._amp_stash = Stash(optimizer, session)
    if session.properties.master_weights:
        for group in optimizer.param_groups:
            stash.make_masters(group, fp16)
        optimizer.zero_grad = MethodType(_zero_grad, optimizer)
        optimizer.add_param_group = MethodType(_add_param_group(optimizer.add_param_group), optimizer)
    if not session.leaves_gradients_alone:
        optimizer.step = MethodType(_step(optimizer.step), optimizer)


def _step(plain: Callable) -> Callable:
    @wraps(plain)  # keeps the attribute that an earlier LR scheduler has set
    def step(self: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        if closure is not None:
            raise UserError(
                "amp: optimizer.step(closure) is not possible, as in apex; compute the loss "
                "before, or use O0."
            )
        stash, result = self._amp_stash, None
        if stash.must_skip():
            # otherwise the LR scheduler warns that it was called before the optimizer
            self._opt_called = True
        else:
            result = plain(**kwargs)
            stash.copy_to_model()
        stash.clear_master_gradients()
        return result

    return step


def _zero_grad(self: Any, set_to_none: bool = False) -> None:
    """Replaces the optimizer's method, as in apex, which does not know the FP16 weights and may take no
    argument.

    The default is zeros instead of None: Adam then still updates an FP32 weight that the next pass does not
    reach.
    """
    stash = self._amp_stash
    stash.clear_master_gradients()
    for weight, _ in stash.pairs():
        if weight.grad is not None:
            weight.grad = None if set_to_none else weight.grad.detach().zero_()


def _add_param_group(plain: Callable) -> Callable:
    @wraps(plain)
    def add_param_group(self: Any, group: dict[str, Any]) -> None:
        plain(group)
        self._amp_stash.make_masters(self.param_groups[-1], set())

    return add_param_group
