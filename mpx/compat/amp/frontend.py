"""initialize, and state_dict and load_state_dict of the newest initialize.

Source of the interface: NVIDIA apex 25.05, apex/amp/frontend.py and _initialize.py.
"""

import warnings
from dataclasses import fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mpx.compat.amp._amp_state import _amp_state, maybe_print, warn_or_err
from mpx.compat.amp.casting import cast_model, castable, sixteen_bits
from mpx.compat.amp.casts import Handle
from mpx.compat.amp.forward import Forward
from mpx.compat.amp.optimizers import attach
from mpx.compat.amp.properties import OFF, check_scaling, resolve, wrong
from mpx.compat.amp.scaler import LossScaler
from mpx.compat.amp.session import Session
from mpx.compat.amp.stash import Stash
from mpx.errors import UserError


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
    """Prepare models and optimizers in place for training at an optimization level. Returns (models, optimizers), or models only if
    optimizers is None.

    Call it after building them and before DistributedDataParallel. Arguments that are None take the level's value:

    | | cast_model_type | patch_torch_functions | keep_batchnorm_fp32 | master_weights | loss_scale |
    |---|---|---|---|---|---|
    | O0 | float32 | False | – | False | 1.0 |
    | O1 | – | True | – | – | "dynamic" |
    | O2 | float16 | False | True | True | "dynamic" |
    | O3 | float16 | False | False | False | 1.0 |

    enabled: False disables all functions of amp. cast_model_outputs: type of the models' outputs, by default FP32.
    num_losses: number of loss scales, one for each loss_id of scale_loss. verbosity: 0 prints nothing.
    loss_scale: "dynamic", or a fixed number, which may be a string. min_loss_scale, max_loss_scale: limits of a dynamic scale.
    Raises UserError for invalid or conflicting arguments, before any change.
    """
    if not enabled:
        return _off(models, optimizers, verbosity)
    properties = resolve(
        opt_level,
        warn_or_err,
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    check_scaling(num_losses, min_loss_scale, max_loss_scale)
    if cast_model_outputs is not None and not (isinstance(cast_model_outputs, torch.dtype) and cast_model_outputs.is_floating_point):
        raise wrong("cast_model_outputs", cast_model_outputs, "a floating-point torch.dtype")
    model_list, optimizer_list = _list(models), _list(optimizers)
    _check_models(model_list, may_be_half=properties.cast_model_type is False or _amp_state.allow_incoming_model_not_fp32)
    _check_optimizers(optimizer_list)
    device = _device(model_list)
    scalers = [LossScaler(properties.loss_scale, device, min_loss_scale, max_loss_scale) for _ in range(num_losses)]
    session = Session(properties, scalers, Handle() if properties.patch_torch_functions else None)
    _register(session, verbosity)
    _change(model_list, optimizer_list, session, cast_model_outputs)
    return models if optimizers is None else (models, optimizers)


def _register(session: Session, verbosity: int) -> None:
    _amp_state.session, _amp_state.verbosity = session, verbosity
    if session.handle is not None:
        _amp_state.handle = session.handle
    properties = session.properties
    maybe_print(f"Selected optimization level {properties.opt_level}: {properties.brief}", rank0=True)
    maybe_print(", ".join(f"{field.name}={getattr(properties, field.name)}" for field in fields(properties)[2:]), rank0=True)


def _change(models: list[nn.Module], optimizers: list[Any], session: Session, outputs: torch.dtype | None) -> None:
    properties, keep = session.properties, bool(session.properties.keep_batchnorm_fp32)
    dtype = properties.cast_model_type or None
    fp16: set[Tensor] = set()
    if dtype == torch.float16:
        fp16 = {tensor for model in models for tensor in castable(model, keep_batchnorm_fp32=keep)}
    for optimizer in optimizers:
        attach(optimizer, session, fp16)  # before the cast, so that master weights copy the FP32 weights
    for model in models:
        if dtype is not None:
            cast_model(model, dtype, keep_batchnorm_fp32=keep)
        if dtype is not None or properties.patch_torch_functions or outputs is not None:
            Forward(model, session, outputs).attach()
    for optimizer in optimizers:
        if optimizer.state and not properties.master_weights:
            optimizer.load_state_dict(optimizer.state_dict())  # casts state from earlier steps to its parameter's type


def _off(models: Any, optimizers: Any, verbosity: int) -> Any:
    session = _amp_state.session = Session(OFF)
    _amp_state.verbosity = verbosity
    for optimizer in _list(optimizers):
        optimizer._amp_stash = Stash(optimizer, session)
    return models if optimizers is None else (models, optimizers)


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
            raise UserError(f"amp.initialize: wrap the model in {type(model).__name__} afterwards; initialize wants the model itself.")
        for name, dtype in () if may_be_half else sixteen_bits(model):
            warn_or_err(f"amp.initialize: {name} is {dtype} already. Pass the model in FP32, and once: amp casts it.")


def _check_optimizers(optimizers: list[Any]) -> None:
    """Check by attributes, since wrappers such as apex's LARC are not a torch.optim.Optimizer."""
    for number, optimizer in enumerate(optimizers):
        if not all(hasattr(optimizer, name) for name in ("param_groups", "state", "step", "zero_grad", "add_param_group")):
            raise wrong("optimizers", optimizer, "a torch.optim.Optimizer or a list of them")
        if hasattr(optimizer, "_amp_stash") and optimizer._amp_stash.session.properties.enabled:
            raise UserError(f"amp.initialize: optimizer {number} ({type(optimizer).__name__}) was initialised before; make a new one.")


def _device(models: list[nn.Module]) -> torch.device:
    """The device of the gradients, and so of the loss scale."""
    first = next(chain.from_iterable(model.parameters() for model in models), None)
    return torch.device("cpu") if first is None else first.device


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Scale and number of clean passes of each loss, newest initialize: {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 12}}."""
    destination = {} if destination is None else destination
    for number, scaler in enumerate(_amp_state.get("amp.state_dict").loss_scalers):
        destination[f"loss_scaler{number}"] = scaler.state_dict()
    return destination


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Restore the loss scales of `state_dict`, which apex may have written. Surplus scales are ignored, with a warning.

    Raises UserError for unknown keys, before any change.
    """
    scalers = _amp_state.get("amp.load_state_dict").loss_scalers
    known = {f"loss_scaler{number}" for number in range(len(state_dict))}
    if unknown := sorted(set(state_dict) - known):
        raise UserError(f"amp.load_state_dict: unexpected {', '.join(unknown)}; allowed are loss_scaler0, loss_scaler1, …")
    if len(state_dict) != len(scalers):
        warnings.warn(f"amp.load_state_dict: {len(state_dict)} loss scales for num_losses={len(scalers)}", stacklevel=2)
    for number, scaler in enumerate(scalers[: len(state_dict)]):
        scaler.load_state_dict(state_dict[f"loss_scaler{number}"])
