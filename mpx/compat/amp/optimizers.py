"""Add amp to an optimizer: FP32 master weights, and a step that skips after an overflow.

step, zero_grad and add_param_group are replaced on the instance, as in apex, since LR schedulers and training loops call them there.
"""

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from mpx.compat.amp.session import Session
from mpx.compat.amp.stash import Stash
from mpx.errors import UserError


def attach(optimizer: Any, session: Session, fp16: set[Tensor]) -> None:
    """Add amp to `optimizer`. fp16: the parameters that will be cast to FP16."""
    stash = optimizer._amp_stash = Stash(optimizer, session)
    optimizer._amp_lazy_init = optimizer._lazy_init_maybe_master_weights = _no_more
    if session.properties.master_weights:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = None  # as in apex, since model.zero_grad() does not reach a master weight's gradient
            stash.make_masters(group, fp16)
        optimizer._master_params_to_model_params = stash.copy_to_model
        optimizer.zero_grad = MethodType(_zero_grad, optimizer)
        optimizer.add_param_group = MethodType(_add_param_group(optimizer.add_param_group), optimizer)
    if not session.leaves_gradients_alone:
        optimizer.step = MethodType(_step(optimizer.step), optimizer)


def _no_more() -> None:
    """apex's late initialisation, which resuming scripts call. initialize has already done everything."""


def _step(plain: Callable) -> Callable:
    @wraps(plain)  # keeps the attribute that an earlier LR scheduler has set
    def step(self: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        stash = self._amp_stash
        loss = _evaluated(self, closure)
        if stash.must_skip():
            self._opt_called = True  # otherwise the LR scheduler warns that it was called before the optimizer
        else:
            result = plain(**kwargs)
            loss = result if closure is None else loss
            stash.copy_to_model()
        stash.clear_master_gradients()
        return loss

    return step


def _evaluated(optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    """The closure's loss, evaluated before the step, since the overflow decides whether the step is skipped."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError("amp: LBFGS evaluates its closure several times a step, which loss scaling cannot skip; use opt_level='O0'.")
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _zero_grad(self: Any, set_to_none: bool = False) -> None:
    """Replaces the optimizer's own method, as in apex, which does not know the FP16 weights and may take no argument.

    The default is zeros instead of None: Adam then still updates an FP32 weight that the next pass does not reach.
    """
    stash = self._amp_stash
    stash.clear_master_gradients()
    for weight, _ in stash.pairs():
        if weight.grad is not None:
            weight.grad = None if set_to_none else weight.grad.detach().zero_()


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
