"""The replacement for an initialised model's forward."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from mpx.compat.amp.casting import HALVES, cast
from mpx.compat.amp.casts import casts, emulated
from mpx.compat.amp.session import Session
from mpx.precision.emulate import Emulate
from mpx.private.torch_modules import replica_of, replicate_by


class Forward:
    """Runs model.forward with cast inputs and outputs, and operations in the level's type.

    It is an object that holds its model as an attribute, not a closure, so that a deep copy or an unpickled model uses its own weights.
    outputs: type of all floating-point outputs; None: FP32, except that O1 keeps types that it did not cast, such as FP64.
    """

    def __init__(self, model: nn.Module, session: Session, outputs: torch.dtype | None):
        before = model.__dict__.get("forward")  # another library's patch, or ours from an earlier initialize
        self.inner = before.inner if isinstance(before, Forward) else before
        self.model = self.called = model
        self.handle = session.handle
        self.fp16 = session.properties.cast_model_type == torch.float16
        self.inputs = session.properties.cast_model_type or None
        self.outputs = outputs or torch.float32
        self.output_sources = None if outputs or self.inputs else HALVES

    def attach(self) -> None:
        self.model.forward = self
        replicate_by(self.model, self.replicate)

    def replicate(self) -> nn.Module:
        """The private hook of nn.DataParallel: returns a copy of the model, which then gets its own weights.

        The default copies the model's attributes, so the copy's forward would still use this object's model.
        """
        replica = replica_of(self.model)
        replica.forward = copy(self)
        replica.forward.called = replica
        return replica

    @property
    def plain(self) -> Callable:
        return self.inner or partial(type(self.called).forward, self.called)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = self._device()
        patched = self.handle is not None and self.handle.on
        if self.inputs is not None:
            args, kwargs = cast((args, kwargs), self.inputs)
        with self._computing(device, patched):
            out = self.plain(*args, **kwargs)
        return cast(out, self.outputs, self.output_sources)

    def _computing(self, device: torch.device, patched: bool) -> AbstractContextManager:
        if patched:
            return casts(device)
        return Emulate("fp16", autocast=False) if self.fp16 and emulated(device) else nullcontext()

    def _device(self) -> torch.device:
        """The device of the original model, since a replica has no parameters."""
        first = next(chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if first is None else first.device
