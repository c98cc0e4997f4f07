"""scale_loss: one backward pass with a scaled loss, and its gradients unscaled afterwards.

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
    """Yield loss.float() times the loss scale; on exit unscale the new gradients and add them to those of earlier passes.

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    optimizers: the one, or a list of all, whose parameters get gradients in this pass, from amp.initialize.
    loss_id: which of initialize's num_losses loss scales to use. model: ignored, as in apex.
    delay_unscale: leave the gradients scaled, for a later pass with the same loss_id that unscales them.
    delay_overflow_check: unscale, but leave adjusting the scale, and skipping the step, to the caller
    (`amp._amp_state.loss_scalers[loss_id].update_scale()` does the first and returns whether to do the second) or to the next check.

    An overflow of a dynamic scale makes the next step() of all these optimizers do nothing. A fixed scale never skips, as in apex.
    Raises UserError for an optimizer that was not initialised, or a loss_id that is not there.
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
    """That of the first optimizer. Where amp is off, optimizers need not have been given to initialize."""
    session = _amp_state.get("amp.scale_loss")
    missing = [number for number, optimizer in enumerate(optimizers) if not hasattr(optimizer, "_amp_stash")]
    if missing and (session.properties.enabled or len(missing) < len(optimizers)):
        name = type(optimizers[missing[0]]).__name__
        raise UserError(f"amp.scale_loss: optimizer {missing[0]} ({name}) did not come from amp.initialize; pass what it returned.")
    return session if missing or not optimizers else optimizers[0]._amp_stash.session


def _backward(session: Session, loss: Tensor) -> AbstractContextManager:
    """Autocast's backward pass runs in the types of the forward pass by itself; emulation has to be told."""
    if not session.multiplies_in_fp16 or not emulated(loss.device):
        return nullcontext()
    return Emulate("fp16", only_16_bit=not session.casts_operations)


def _prepare(stash: Stash, loss_id: int, number: int) -> None:
    """Put the unscaled gradients of earlier passes aside, unless gradients that are still scaled are to be added to."""
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
        weight.grad = None  # an FP16 weight's gradient is in its master already


def _put_back(stashes: list[Stash]) -> None:
    """The pass failed, say for lack of memory: without it, gradients are what they were before."""
    for stash in stashes:
        if stash.waiting is None:
            for parameter, gradient in stash.kept.items():
                parameter.grad = gradient
            stash.kept = {}


@torch.no_grad()
def _delay(stashes: list[Stash], scaler: LossScaler, loss_id: int) -> None:
    """Scale what was put aside and add it to this pass's gradients, so that zero_grad, of the model too, clears everything."""
    for stash in stashes:
        for parameter, earlier in stash.kept.items():
            earlier = scaler.scaled(earlier).to(earlier.dtype)  # on CUDA an FP16 gradient times the scale makes FP16 of the scale too
            parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)
        stash.kept, stash.waiting = {}, loss_id


@torch.no_grad()
def _unscale(stashes: list[Stash], scaler: LossScaler) -> None:
    """Unscale this pass's gradients, in FP32 where there are master weights, and add them to what earlier passes left."""
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
