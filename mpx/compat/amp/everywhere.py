"""amp.init: cast around operations everywhere in this thread, instead of only in a model's forward.

Source of the interface: NVIDIA apex 25.05, apex/amp/amp.py.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpx.compat.amp._amp_state import _amp_state
from mpx.compat.amp.casting import HALVES
from mpx.compat.amp.casts import DISABLED, EMULATED, Handle, disable_casts, emulated, fp16, here
from mpx.compat.amp.functions import float_function
from mpx.errors import UserError
from mpx.private.torch_dispatch import tree_leaves


class Banned(UserError, NotImplementedError):
    """The error for F.binary_cross_entropy of FP16 tensors, as in apex."""


class Everywhere(Handle):
    """The handle of one amp.init. context: its casts, already entered."""

    __slots__ = ("binary_cross_entropy", "context")

    def __init__(self, context: AbstractContextManager):
        super().__init__()
        self.context, self.binary_cross_entropy = context, F.binary_cross_entropy

    def _deactivate(self) -> None:
        if self.on:
            self.on = False
            F.binary_cross_entropy, here.region = self.binary_cross_entropy, None
            self.context.__exit__(None, None, None)


def init(
    enabled: bool = True,
    loss_scale: float | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> Handle:
    """Cast around operations as in O1, also outside of models, until `_deactivate()` of the returned handle is called.

    For scripts older than amp.initialize. Applies to the calling thread: to CUDA tensors if there is a GPU, otherwise to CPU tensors
    (emulated). enabled: False returns a handle that does nothing. allow_banned: compute F.binary_cross_entropy of FP16 tensors in FP32,
    instead of raising an error. loss_scale, enable_caching, verbose: ignored; scale_loss has the loss scale, and nothing is cached.
    Raises UserError if casts are already on.
    """
    if not enabled:
        handle = Handle()
        handle._deactivate()
        return handle
    if here.region is not None:
        raise UserError("amp.init: casts are on already in this thread; call _deactivate() of what the first amp.init returned.")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    context = fp16(device, cache=False)
    context.__enter__()
    here.region = EMULATED if emulated(device) else device.type
    handle = _amp_state.handle = Everywhere(context)
    F.binary_cross_entropy = (float_function if allow_banned else _banned)(F.binary_cross_entropy)
    return handle


def _banned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(function)
    def refuses(*args: Any, **kwargs: Any) -> Tensor:
        if here.region != DISABLED and any(isinstance(leaf, Tensor) and leaf.dtype in HALVES for leaf in tree_leaves((args, kwargs))):
            raise Banned(
                "F.binary_cross_entropy of FP16 tensors: use F.binary_cross_entropy_with_logits, amp.register_float_function(torch, "
                "'sigmoid') or amp.init(allow_banned=True)."
            )
        with disable_casts():
            return function(*args, **kwargs)

    return refuses
