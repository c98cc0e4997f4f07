"""A network of the user's own: `model=custom model._target_=my_package.my_module.Net`.

The target is any class or function, importable from the current folder, that returns a torch.nn.Module whose `forward(x)` gives logits.
Of what the data set decides (see `known`) it is given the arguments that it has by name, then `model.kwargs`.
"""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping

from torch import nn

from mpx.errors import UserError, nearest
from mpx.models.arguments import accepted
from mpx.models.plain import plain
from mpx.models.probe import check_output
from mpx.spec import Spec


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """Import the target, call it and check what came back."""
    path = cfg.get("_target_")
    if not path:
        raise UserError("model=custom needs model._target_=package.module.Class, a network that can be imported from the current folder.")
    target = _resolve(path)
    kwargs = plain(cfg["kwargs"])
    _check_kwargs(target, path, kwargs, spec)
    allowed = accepted(target)
    model = target(**{key: value for key, value in known(spec).items() if key in allowed} | kwargs)
    if not isinstance(model, nn.Module):
        raise UserError(f"model._target_={path} returned a {type(model).__name__}; it must return a torch.nn.Module.")
    check_output(model, spec, f"model._target_={path}")
    return model


def known(spec: Spec) -> dict:
    """The arguments that a target may have."""
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
        sys.path.insert(0, os.getcwd())  # for good: the user's module may import its neighbours later
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"model._target_={path} cannot be imported from {os.getcwd()}: {error}. Write the path as in an import, package.module.Class."
        ) from error
    if not callable(target):
        raise UserError(f"model._target_={path} is a {type(target).__name__}, not a class or function that makes a network.")
    return target


def _check_kwargs(target: Callable, path: str, kwargs: dict, spec: Spec) -> None:
    parameters = inspect.signature(target).parameters.values()
    allowed = accepted(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    for key in kwargs:
        if key not in allowed and not takes_any:
            raise UserError(f"model.kwargs.{key} is not an argument of {path}; allowed: {', '.join(allowed)}.{nearest(key, allowed)}")
    for p in parameters:
        if p.name in allowed and p.default is inspect.Parameter.empty and p.name not in kwargs and p.name not in known(spec):
            raise UserError(f"model._target_={path} needs the argument {p.name}: set +model.kwargs.{p.name}=…")
