"""scale_loss: run one backward pass with a scaled loss, then unscale its gradients.

Source of the interface: NVIDIA apex 25.05, apex/amp/handle.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compat.amp._amp_state import _amp_state
from mpx.compat.amp.casts import emulated
from mpx.compat.amp.scaler import LossScaler
from mpx.compat.amp.session import Session
from mpx.compat.amp.stash import Stash
from mpx.errors import UserError
from mpx.precision.emulate import Emulate


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """Yield loss.float() times the loss scale. On exit, unscale the new gradients and add them to those of earlier passes.

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    optimizers: the initialised optimizer, or list of optimizers, whose parameters get gradients in this pass.
    loss_id: which of initialize's num_losses loss scales to use. model: ignored, as in apex.
    delay_unscale: keep the gradients scaled; a later pass with the same loss_id unscales them.
    delay_overflow_check: unscale, but leave adjusting the scale and skipping the step to the caller or to the next check.
    `amp._amp_state.loss_scalers[loss_id].update_scale()` adjusts the scale and returns whether to skip.

    After an overflow of a dynamic scale, the next step() of all these optimizers does nothing. A fixed scale never skips, as in apex.
    Raises UserError for an optimizer that was not initialised, or an unknown loss_id.
    """
    optimizers = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
    session = _session(optimizers)
    if not session.properties.enabled:
        yield loss
        return
    scaler, stashes = session.scaler(loss_id), [optimizer._amp_stash for optimizer in optimizers]
    if session.leaves_gradients_alone:
        with _backward(session, loss):
            yield loss.float()
        return
    for number, stash in enumerate(stashes):
        _prepare(stash, loss_id, number)
    try:
        with _backward(session, loss):
            yield scaler.scaled(loss)
    except BaseException:
        _put_back(stashes)
        raise
    if delay_unscale:
        _delay(stashes, scaler, loss_id)
        return
    _unscale(stashes, scaler)
    if not delay_overflow_check:
        _note_overflow(stashes, scaler, loss_id)


def _session(optimizers: list[Any]) -> Session:
    """The session of the first optimizer. If amp is off, the optimizers need not be initialised."""
    session = _amp_state.get("amp.scale_loss")
    missing = [number for number, optimizer in enumerate(optimizers) if not hasattr(optimizer, "_amp_stash")]
    if missing and (session.properties.enabled or len(missing) < len(optimizers)):
        name = type(optimizers[missing[0]]).__name__
        raise UserError(f"amp.scale_loss: optimizer {missing[0]} ({name}) did not come from amp.initialize; pass what it returned.")
    return session if missing or not optimizers else optimizers[0]._amp_stash.session


def _backward(session: Session, loss: Tensor) -> AbstractContextManager:
    """A context for the backward pass. Autocast repeats the types of the forward pass without one; emulation needs it."""
    if not session.multiplies_in_fp16 or not emulated(loss.device):
        return nullcontext()
    return Emulate("fp16", autocast=session.casts_operations)


def _prepare(stash: Stash, loss_id: int, number: int) -> None:
    """Set the unscaled gradients of earlier passes aside, unless this pass adds to gradients that are still scaled."""
    stash.settle()
    if stash.waiting is not None:
        if stash.waiting != loss_id:
            raise UserError(
                f"amp.scale_loss(loss_id={loss_id}): optimizer {number} holds gradients scaled for loss_id={stash.waiting} "
                f"(delay_unscale=True); end them with a pass of that loss_id and delay_unscale=False."
            )
        return
    for weight, parameter in stash.pairs():
        if weight is parameter and weight.grad is not None:
            stash.kept[weight] = weight.grad
        weight.grad = None  # an FP16 weight's gradient is already in its master


def _put_back(stashes: list[Stash]) -> None:
    """Restore the gradients from before a failed pass, for example after running out of memory."""
    for stash in stashes:
        if stash.waiting is None:
            for parameter, gradient in stash.kept.items():
                parameter.grad = gradient
            stash.kept = {}


@torch.no_grad()
def _delay(stashes: list[Stash], scaler: LossScaler, loss_id: int) -> None:
    """Scale the gradients set aside and add them to this pass's, so that any zero_grad, also the model's, clears everything."""
    for stash in stashes:
        for parameter, earlier in stash.kept.items():
            earlier = scaler.scaled(earlier).to(earlier.dtype)  # `scaled` multiplies in FP32, since FP16 cannot hold the scale
            parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
        stash.kept, stash.waiting = {}, loss_id


@torch.no_grad()
def _unscale(stashes: list[Stash], scaler: LossScaler) -> None:
    """Unscale this pass's gradients, in FP32 if there are master weights, and add them to those of earlier passes."""
    pairs = {parameter: weight for stash in stashes for weight, parameter in stash.pairs()}
    kept = {parameter: gradient for stash in stashes for parameter, gradient in stash.kept.items()}
    new = {parameter: weight.grad for parameter, weight in pairs.items() if weight.grad is not None}
    new = {parameter: gradient if pairs[parameter] is parameter else gradient.float() for parameter, gradient in new.items()}
    scaler.unscale_(new.values())
    for parameter, gradient in new.items():
        earlier = kept.pop(parameter, None) if pairs[parameter] is parameter else parameter.grad
        parameter.grad = gradient if earlier is None else gradient.add_(earlier)
    for parameter, gradient in kept.items():
        parameter.grad = gradient
    for stash in stashes:
        stash.kept, stash.waiting = {}, None


def _note_overflow(stashes: list[Stash], scaler: LossScaler, loss_id: int) -> None:
    overflowed = scaler.end_pass()
    if scaler.dynamic:
        for stash in stashes:
            before = stash.overflowed.get(loss_id)
            stash.overflowed[loss_id] = overflowed if before is None else torch.maximum(before, overflowed)
