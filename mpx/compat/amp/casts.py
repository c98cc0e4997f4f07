"""Casts around operations: on inside the forward of an O1 model, off inside disable_casts.

Source of the names: NVIDIA apex 25.05, apex/amp/handle.py.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import local
from typing import Any

import torch

from mpx.errors import UserError
from mpx.precision.emulate import Emulate
from mpx.private.torch_dispatch import without_modes

EMULATED, DISABLED = "emulated", "disabled"


class Here(local):  # not a ContextVar, which torch.compile cannot trace
    region: str | None = None  # EMULATED, DISABLED, or the device type for which autocast is on


here = Here()


def emulated(device: torch.device) -> bool:
    """Whether FP16 is emulated. CPUs have FP16, but their FP16 products are hundreds of times slower than FP32."""
    return device.type == "cpu"


def fp16(device: torch.device, *, cache: bool) -> AbstractContextManager:
    """A context that casts to FP16. cache: cast each weight once; PyTorch drops the cached casts when the outermost region ends."""
    return Emulate("fp16") if emulated(device) else torch.autocast(device.type, dtype=torch.float16, cache_enabled=cache)


@contextmanager
def casts(device: torch.device) -> Iterator[None]:
    """Cast around operations, as in O1. Has no effect inside disable_casts."""
    if here.region == DISABLED:
        yield
        return
    before, here.region = here.region, EMULATED if emulated(device) else device.type
    try:
        with fp16(device, cache=before is None):
            yield
    finally:
        here.region = before


@contextmanager
def disable_casts() -> Iterator[None]:
    """Run operations in the type of their operands, inside an O1 model's forward or around calls of such a model.

    Tensors from before may already be FP16; call .float() on them.
    """
    before, here.region = here.region, DISABLED
    try:
        with _without_casts(before):
            yield
    finally:
        here.region = before


def _without_casts(region: str | None) -> AbstractContextManager:
    if region in (None, DISABLED):
        return nullcontext()
    if region == EMULATED:
        return without_modes()  # all of them, since those that Emulate entered may no longer be the innermost
    return torch.autocast(region, enabled=False)


class Handle:
    """`amp._amp_state.handle`: the casts of one initialize with O1, which _deactivate ends permanently."""

    __slots__ = ("on",)
    has_cache, verbose = False, False  # cast weights live for one forward pass only
    _disable_casts = staticmethod(disable_casts)

    def __init__(self) -> None:
        self.on = True

    def __deepcopy__(self, memo: dict[int, Any]) -> "Handle":
        """A copied model shares the handle, so that its casts end with the original's."""
        return self

    def is_active(self) -> bool:
        return self.on and here.region != DISABLED

    def _deactivate(self) -> None:
        self.on = False

    @property
    def cache(self) -> dict[Any, Any]:
        return {}

    def _clear_cache(self) -> None:
        """Do nothing, since there is no cache."""

    def scale_loss(self, *_: Any, **__: Any) -> None:
        raise UserError("amp_handle.scale_loss, which apex refuses too: use amp.initialize and `with amp.scale_loss(loss, optimizer)`.")

    def wrap_optimizer(self, *_: Any, **__: Any) -> None:
        raise UserError("amp_handle.wrap_optimizer: use model, optimizer = amp.initialize(model, optimizer, opt_level='O1') instead.")
