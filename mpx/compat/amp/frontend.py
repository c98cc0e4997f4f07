"""initialize and init, and state_dict and load_state_dict of the newest initialize.

Source of the interface: NVIDIA apex 25.05, apex/amp/frontend.py and _initialize.py.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compat.amp.casts import (
    HALVES,
    Handle,
    cast,
    cast_everywhere,
    cast_model,
    castable,
    casts,
    emulated,
    here,
)  # fmt: skip
from mpx.compat.amp.optimizers import attach
from mpx.compat.amp.state import OFF, LossScaler, Properties, Session, _amp_state, positive, resolve, wrong
from mpx.errors import UserError
from mpx.precision.emulate import Emulate


def initialize(
    models: nn.Module | list[nn.Module],
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | bool | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Prepare models and optimizers in place for training at an optimization level. Returns (models,
    optimizers), or models only if optimizers is None.

    Call it after building them and before DistributedDataParallel. Arguments that are None take the level's
    value:

    | | cast_model_type | patch_torch_functions | keep_batchnorm_fp32 | master_weights | loss_scale |
    |---|---|---|---|---|---|
    | O0 | float32 | False | – | False | 1.0 |
    | O1 | – | True | – | – | "dynamic" |
    | O2 | float16 | False | True | True | "dynamic" |
    | O3 | float16 | False | False | False | 1.0 |

    enabled: False disables all functions of amp. cast_model_outputs: type of the models' outputs, by default
    FP32. num_losses: number of loss scales, one for each loss_id of scale_loss. verbosity: 0 prints nothing.
    loss_scale: "dynamic", or a fixed number, which may be a string. min_loss_scale, max_loss_scale: limits of
    a dynamic scale.
    Raises UserError for invalid or conflicting arguments, before any change.
    """
    if not enabled:
        _amp_state.session = Session(OFF)
        return models if optimizers is None else (models, optimizers)
    properties = resolve(
        opt_level,
        {
            "cast_model_type": cast_model_type,
            "patch_torch_functions": patch_torch_functions,
            "keep_batchnorm_fp32": keep_batchnorm_fp32,
            "master_weights": master_weights,
            "loss_scale": loss_scale,
        },
    )
    model_list, optimizer_list = _list(models), _list(optimizers)
    _check_models(
        model_list,
        may_be_half=properties.cast_model_type is False or _amp_state.allow_incoming_model_not_fp32,
    )
    _check_optimizers(optimizer_list)
    scalers = _loss_scalers(properties, model_list, num_losses, min_loss_scale, max_loss_scale)
    handle = Handle() if properties.patch_torch_functions else None
    session = Session(properties, scalers, handle, verbosity)
    _amp_state.session, _amp_state.handle = session, handle or _amp_state.handle
    session.say(f"Selected optimization level {properties.opt_level}: {properties.brief}")
    session.say(", ".join(f"{item.name}={getattr(properties, item.name)}" for item in fields(properties)[2:]))
    _change(model_list, optimizer_list, session, cast_model_outputs)
    return models if optimizers is None else (models, optimizers)


def _loss_scalers(
    properties: Properties, models: list[nn.Module], count: Any, smallest: Any, largest: Any
) -> list[LossScaler]:
    if not isinstance(count, int) or count < 1:
        raise wrong("num_losses", count, "a whole number from 1, one loss scale for each")
    smallest = None if smallest is None else positive("min_loss_scale", smallest)
    largest = None if largest is None else positive("max_loss_scale", largest)
    first = next(chain.from_iterable(model.parameters() for model in models), torch.empty(0))
    return [LossScaler(properties.loss_scale, first.device, smallest, largest) for _ in range(count)]


def _change(
    models: list[nn.Module], optimizers: list[Any], session: Session, outputs: torch.dtype | None
) -> None:
    properties, keep = session.properties, bool(session.properties.keep_batchnorm_fp32)
    dtype = properties.dtype
    fp16: set[Tensor] = set()
    if dtype == torch.float16:
        fp16 = {tensor for model in models for tensor in castable(model, keep_batchnorm_fp32=keep)}
    for optimizer in optimizers:
        attach(optimizer, session, fp16)  # before the cast, so that master weights copy the FP32 weights
    for model in models:
        if dtype is not None:
            cast_model(model, dtype, keep_batchnorm_fp32=keep)
        if dtype is not None or properties.patch_torch_functions or outputs is not None:
            model.forward = Forward(model, session, outputs)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_models(models: list[Any], *, may_be_half: bool) -> None:
    """may_be_half: accept 16-bit weights."""
    for model in models:
        if not isinstance(model, nn.Module):
            raise wrong("models", model, "a torch.nn.Module or a list of them")
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise UserError(
                f"amp.initialize: wrap the model in {type(model).__name__} afterwards; "
                "initialize wants the model itself."
            )
        for name, tensor in () if may_be_half else chain(model.named_parameters(), model.named_buffers()):
            if tensor.dtype in HALVES:
                raise UserError(
                    f"amp.initialize: {name} is {tensor.dtype} already. Pass the model in "
                    "FP32, and once: amp casts it."
                )


def _check_optimizers(optimizers: list[Any]) -> None:
    """By an attribute, since wrappers such as apex's LARC are not a torch.optim.Optimizer."""
    for number, optimizer in enumerate(optimizers):
        if not hasattr(optimizer, "param_groups"):
            raise wrong("optimizers", optimizer, "a torch.optim.Optimizer or a list of them")
        if hasattr(optimizer, "_amp_stash"):
            raise UserError(
                f"amp.initialize: optimizer {number} ({type(optimizer).__name__}) was "
                "initialised before; make a new one."
            )


class Forward:
    """Runs a model's forward with cast inputs and outputs, and operations in the level's type.

    It is an object that holds its model as an attribute, not a closure, so that a deep copy or an unpickled
    model uses its own weights. outputs: type of all floating-point outputs; None: FP32, except that O1 keeps
    types that it did not cast, such as FP64.
    """

    def __init__(self, model: nn.Module, session: Session, outputs: torch.dtype | None):
        self.model, self.plain, self.handle = model, model.forward, session.handle
        self.inputs = session.properties.dtype
        self.outputs = outputs or torch.float32
        self.output_sources = None if outputs or self.inputs else HALVES

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.inputs is not None:
            args, kwargs = cast((args, kwargs), self.inputs)
        with self._computing():
            out = self.plain(*args, **kwargs)
        return cast(out, self.outputs, self.output_sources)

    def _computing(self) -> AbstractContextManager:
        device = next(chain(self.model.parameters(), self.model.buffers()), torch.empty(0)).device
        if self.handle is not None and self.handle.on:
            return casts(device, cache=here.region is None)
        return (
            Emulate("fp16", autocast=False)
            if self.inputs == torch.float16 and emulated(device)
            else nullcontext()
        )


def init(
    enabled: bool = True,
    loss_scale: float | str = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
) -> Handle:
    """Cast around operations as in O1, also outside of models, until `_deactivate()` of the returned handle
    is called.

    For scripts older than amp.initialize. Applies to the calling thread: to CUDA tensors if there is a GPU,
    otherwise to CPU tensors (emulated). enabled: False returns a handle that does nothing. allow_banned:
    compute F.binary_cross_entropy of FP16 tensors in FP32, instead of raising an error. The other arguments
    are ignored.
    """
    handle = _amp_state.handle = Handle()
    if enabled:
        cast_everywhere(handle, allow_banned=allow_banned)
    return handle


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Scale and number of clean passes of each loss, newest initialize: {"loss_scaler0": {"loss_scale":
    65536.0, "unskipped": 12}}.
    """
    destination = {} if destination is None else destination
    for number, scaler in enumerate(_amp_state.get("amp.state_dict").loss_scalers):
        destination[f"loss_scaler{number}"] = scaler.state_dict()
    return destination


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Restore the loss scales of `state_dict`, which apex may have written. Surplus scales are ignored, with
    a warning.

    Raises UserError for unknown keys, before any change.
    """
    scalers = _amp_state.get("amp.load_state_dict").loss_scalers
    known = {f"loss_scaler{number}" for number in range(len(state_dict))}
    if unknown := sorted(set(state_dict) - known):
        raise UserError(
            f"amp.load_state_dict: unexpected {', '.join(unknown)}; allowed are loss_scaler0, loss_scaler1, …"
        )
    if len(state_dict) != len(scalers):
        warnings.warn(
            f"amp.load_state_dict: {len(state_dict)} loss scales for num_losses={len(scalers)}", stacklevel=2
        )
    for number, scaler in enumerate(scalers[: len(state_dict)]):
        scaler.load_state_dict(state_dict[f"loss_scaler{number}"])
