"""The user's own network: `model=custom model._target_=my_package.my_module.Net`.

The target is any class or function that can be imported from the current folder and returns a torch.nn.Module whose `forward(x)` returns
logits. It gets `model.kwargs` and the arguments of `known` that it accepts.
"""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping

from torch import nn

from mpx.errors import UserError
from mpx.models.arguments import accepted, unknown
from mpx.models.probe import check_output
from mpx.spec import Spec


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """Import the target, call it and check the network that it returns."""
    path, kwargs = cfg["_target_"], cfg.get("kwargs") or {}
    target = _resolve(path)
    _check_kwargs(target, path, kwargs, spec)
    allowed = accepted(target)
    model = target(**{key: value for key, value in known(spec).items() if key in allowed} | kwargs)
    if not isinstance(model, nn.Module):
        raise UserError(f"model._target_={path} returned a {type(model).__name__}; it must return a torch.nn.Module.")
    check_output(model, spec, f"model._target_={path}")
    return model


def known(spec: Spec) -> dict:
    """The arguments that the data set determines, by the names that a target can use for them."""
    image = spec.kind == "image"
    return {
        "spec": spec,
        "input_shape": spec.shape,
        "in_channels": spec.shape[0] if image else None,
        "num_classes": spec.classes,
        "vocab_size": spec.vocab_size,
        "seq_len": None if image else spec.shape[0],
        "pad_id": spec.pad_id,
    }


def _resolve(path: str) -> Callable:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # never removed, since the user's module may import its neighbours later
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"model._target_={path} cannot be imported from {os.getcwd()}: {error}. Write the path as in an import, package.module.Class."
        ) from error
    if not callable(target):
        raise UserError(f"model._target_={path} is a {type(target).__name__}, not a class or function that makes a network.")
    try:
        inspect.signature(target)
    except ValueError as error:
        raise UserError(
            f"model._target_={path} does not say which arguments it takes, as some built-in types. Name a class or function that makes a "
            "torch.nn.Module."
        ) from error
    return target


def _check_kwargs(target: Callable, path: str, kwargs: dict, spec: Spec) -> None:
    parameters = inspect.signature(target).parameters.values()
    allowed = accepted(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    for key in kwargs:
        if key not in allowed and not takes_any:
            raise UserError(unknown(key, path, allowed))
    for p in parameters:
        if p.kind is inspect.Parameter.POSITIONAL_ONLY and p.default is inspect.Parameter.empty:
            raise UserError(
                f"model._target_={path} takes {p.name} by its place only. Name a class or function that makes a torch.nn.Module."
            )
        if p.name in allowed and p.default is inspect.Parameter.empty and p.name not in kwargs and p.name not in known(spec):
            raise UserError(f"model._target_={path} needs the argument {p.name}: set +model.kwargs.{p.name}=…")
