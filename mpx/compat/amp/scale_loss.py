"""scale_loss: run one backward pass with a scaled loss, then unscale its gradients.

Source of the interface: NVIDIA apex 25.05, apex/amp/handle.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compat.amp.casts import emulated
from mpx.compat.amp.optimizers import Stash
from mpx.compat.amp.state import LossScaler, Session, _amp_state
from mpx.errors import UserError
from mpx.precision.emulate import Emulate


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
) -> Iterator[Tensor]:
    """Yield loss.float() times the loss scale. On exit, unscale the new gradients and add them to those of
    earlier passes.

        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    optimizers: the initialised optimizer, or list of optimizers, whose parameters get gradients in this pass.
    loss_id: which of initialize's num_losses loss scales to use. model: ignored, as in apex.
    delay_unscale: keep the gradients scaled; a later pass with the same loss_id unscales them.

    After an overflow of a dynamic scale, the next step() of all these optimizers does nothing. A fixed scale
    never skips, as in apex. Raises UserError for an optimizer that was not initialised, or an unknown
    loss_id.
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
    for stash in stashes:
        _prepare(stash, scaler, loss_id)
    try:
        with _backward(session, loss):
            yield scaler.scale.scale_loss(loss.float())
    finally:  # also after a pass that failed, such as for want of memory
        if not delay_unscale:
            _unscale(stashes, scaler)
    if not delay_unscale:
        _note_overflow(stashes, scaler, loss_id)


def _session(optimizers: list[Any]) -> Session:
    """The session of the first optimizer. If amp is off, the optimizers are not initialised."""
    session = _amp_state.get("amp.scale_loss")
    missing = [type(optimizer).__name__ for optimizer in optimizers if not hasattr(optimizer, "_amp_stash")]
    if missing and session.properties.enabled:
        raise UserError(
            f"amp.scale_loss: this {missing[0]} did not come from amp.initialize; pass what it returned."
        )
    return session if missing or not optimizers else optimizers[0]._amp_stash.session


def _backward(session: Session, loss: Tensor) -> AbstractContextManager:
    """A context for the backward pass. Autocast repeats the types of the forward pass without one; emulation
    needs it.
    """
    fp16 = session.casts_operations or session.properties.dtype == torch.float16
    if not fp16 or not emulated(loss.device):
        return nullcontext()
    return Emulate("fp16", autocast=session.casts_operations)


@torch.no_grad()
def _prepare(stash: Stash, scaler: LossScaler, loss_id: int) -> None:
    """Scale the gradients of earlier passes, so that this pass may add to them. Those of FP16 weights are in
    the masters.
    """
    stash.synchronize()
    if stash.scaled not in (None, loss_id):
        raise UserError(
            f"amp.scale_loss(loss_id={loss_id}): an optimizer holds gradients scaled for "
            f"loss_id={stash.scaled} (delay_unscale=True); end them with a pass of that loss_id and "
            "delay_unscale=False."
        )
    if stash.scaled is None:
        earlier = []
        for weight, parameter in stash.pairs():
            if weight is not parameter:
                weight.grad = None
            elif weight.grad is not None:
                earlier.append(weight.grad)
        scaler.scale.rescale_(earlier)
        for gradient in earlier if scaler.dynamic else ():
            # an overflow of an earlier pass skips the step, and is not this pass's
            gradient.nan_to_num_(0, 0, 0)
    stash.scaled = loss_id


@torch.no_grad()
def _unscale(stashes: list[Stash], scaler: LossScaler) -> None:
    """Unscale the gradients. Those of FP16 weights are added, in FP32, to their masters' of earlier
    passes.
    """
    gradients = {}
    for weight, parameter in chain.from_iterable(stash.pairs() for stash in stashes):
        if weight.grad is not None:
            gradients[parameter] = weight.grad if weight is parameter else weight.grad.float()
    scaler.scale.unscale_(gradients.values())
    for parameter, gradient in gradients.items():
        if parameter.grad is None:
            parameter.grad = gradient
        elif parameter.grad is not gradient:
            parameter.grad.add_(gradient)
    for stash in stashes:
        stash.scaled = None


def _note_overflow(stashes: list[Stash], scaler: LossScaler, loss_id: int) -> None:
    overflowed = scaler.end_pass()
    for stash in stashes if scaler.dynamic else ():
        before = stash.overflowed.get(loss_id)
        stash.overflowed[loss_id] = overflowed if before is None else torch.maximum(before, overflowed)
