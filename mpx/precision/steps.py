"""Optimizer steps on the gradients of a scaled loss, in automatic and in manual optimization.

The rules are those of torch.amp.GradScaler: gradients are divided by the loss scale once, before they are
clipped, and only if a scaled backward pass has made them; a step whose gradients overflowed is skipped. What
would break them is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from mpx.errors import UserError
from mpx.precision.scaling import LossScale
from mpx.private.torch_dispatch import version


class ScaledSteps:
    """mode: its name, for what is refused."""

    def __init__(self, mode: str, scale: LossScale):
        self.mode, self.scale = mode, scale
        self._passes = 0  # backward passes of a scaled loss
        self._in_pass = False
        # the number of passes when its gradients were last unscaled
        self._unscaled_at: dict[Optimizer, int] = {}
        # Optimizers of a manual optimization whose gradients are unscaled before their step: whether they
        # overflowed.
        self._overflowed: dict[Optimizer, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self._stepped = False  # an optimizer of a manual optimization has, since the scale was adjusted

    def connect(self, optimizers: list[Optimizer]) -> None:
        """Raises UserError for an optimizer that a loss scale cannot serve."""
        for optimizer in optimizers:
            if isinstance(optimizer, LBFGS):
                raise UserError(self._computes_again(optimizer))
            self._hooks.append(optimizer.register_step_pre_hook(self._refuse_scaled))

    def disconnect(self) -> None:
        """The optimizers may step in other ways again."""
        while self._hooks:
            self._hooks.pop().remove()

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """The backward pass of a loss that has been scaled."""
        self._passes += 1
        self._in_pass = True
        try:
            yield
        finally:
            self._in_pass = False

    def step(self, optimizer: Optimizer, loss: Any, before: Callable[[], None], **kwargs: Any) -> Any:
        """A step of an automatic optimization. before: called when the gradients are unscaled."""
        if self._has_scaled(optimizer):
            self._unscale(optimizer)
        before()
        output = self.scale.step(optimizer, closure=self._closure(optimizer, loss), **kwargs)
        self.scale.update()
        return output

    def step_by_hand(self, optimizer: Optimizer, loss: Any, before: Callable[[], None], **kwargs: Any) -> Any:
        """As `step`, in a manual optimization: skipped if this optimizer's gradients overflowed."""
        self.unscale_by_hand(optimizer)
        before()  # may clip the gradients, which are unscaled already
        self.scale.found_inf.copy_(self._overflowed.pop(optimizer))
        output = self.scale.step(optimizer, closure=self._closure(optimizer, loss), **kwargs)
        self.scale.stepped()
        self._stepped = True
        return output

    def unscale_by_hand(self, optimizer: Optimizer) -> None:
        """Once before a step, as GradScaler.unscale_. Raises UserError if no scaled loss has made the
        gradients.
        """
        if optimizer in self._overflowed:
            return
        if not self._has_scaled(optimizer):
            raise self._not_scaled(f"the gradients of {type(optimizer).__name__} are")
        self._unscale(optimizer)
        self._overflowed[optimizer] = self.scale.found_inf.clone()
        self.scale.found_inf.zero_()

    def _unscale(self, optimizer: Optimizer) -> None:
        self._unscaled_at[optimizer] = self._passes
        self.scale.unscale_(gradients(optimizer))

    def _has_scaled(self, optimizer: Optimizer) -> bool:
        return self._unscaled_at.get(optimizer, 0) < self._passes

    @contextmanager
    def batch_by_hand(self, optimizers: list[Optimizer]) -> Iterator[None]:
        """One batch of a manual optimization. At its end the scale is adjusted once, though several
        optimizers may have stepped: otherwise later gradients would have another scale. loss.backward() must
        add nothing to their gradients.
        """
        plain = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            before = None if self._in_pass else _changes(optimizers)
            plain(*args, **kwargs)
            if before not in (None, _changes(optimizers)):
                raise self._not_scaled("loss.backward() adds gradients that are")

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = plain
        self._adjust()

    def _adjust(self) -> None:
        left, self._overflowed = self._overflowed, {}
        for overflowed in left.values():
            self.scale.note(overflowed)
        if self._stepped or left:
            self.scale.update_after_several()
        for optimizer in left:  # clipped without a step: the next batch may add scaled gradients to them
            self.scale.rescale_(gradients(optimizer))
            del self._unscaled_at[optimizer]
        self._stepped = False

    def _closure(self, optimizer: Optimizer, loss: Any) -> Callable[[], Any]:
        """The loss and its gradients are computed already. Raises UserError when it is called again."""
        losses = [loss]

        def closure() -> Any:
            if not losses:
                raise UserError(self._computes_again(optimizer))
            return losses.pop()

        return closure

    def _computes_again(self, optimizer: Optimizer) -> str:
        return (
            f"precision={self.mode} with {type(optimizer).__name__}, which computes the loss several times "
            "a step, while a loss scale needs one backward pass a step. Use precision=amp_bf16, bf16_true, "
            "tf32 or fp32, or an optimizer that computes it once."
        )

    def _not_scaled(self, what: str) -> UserError:
        return UserError(
            f"precision={self.mode}: {what} not multiplied by the loss scale, but each step divides by it. "
            "Use self.manual_backward(loss)."
        )

    def _refuse_scaled(self, optimizer: Optimizer, *step: Any) -> None:
        """Before each step of PyTorch's optimizer, also one that the module takes past Lightning's."""
        if self._has_scaled(optimizer) and has_gradients(optimizer):
            raise UserError(
                f"precision={self.mode}: {type(optimizer).__name__}.step() would apply gradients that are "
                "still multiplied by the loss scale. Call step() of Lightning's optimizer, as "
                "self.optimizers() returns it."
            )


def gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    return (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)


def has_gradients(optimizer: Optimizer) -> bool:
    return next(gradients(optimizer), None) is not None


def _changes(optimizers: list[Optimizer]) -> list[tuple[int, int]]:
    """Which gradients there are, and how often each has changed."""
    every = (gradient for optimizer in optimizers for gradient in gradients(optimizer))
    return [(id(gradient), version(gradient)) for gradient in every]
