"""A class or function that the user names: `_target_=package.module.name` with kwargs, found from the current folder."""

import hashlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mpx.errors import UserError, nearest

_resolved: dict[str, tuple[Any, str]] = {}  # path -> the target, and a hash of its file at that moment


def resolve(key: str, path: str, makes: str) -> Callable:
    """The target. key: the setting, model._target_; makes: what it should make, in words. Raises UserError."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # never removed, since the user's module may import its neighbours later
    try:
        target = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{key}={path} cannot be imported from {os.getcwd()}: {error}. Write the path as in an import, package.module.Class."
        ) from error
    if not callable(target):
        raise UserError(f"{key}={path} is a {type(target).__name__}, not a class or function that makes {makes}.")
    try:
        inspect.signature(target)
    except ValueError as error:
        raise UserError(
            f"{key}={path} does not say which arguments it takes, as some built-in types. Name a class or function that makes {makes}."
        ) from error
    _refuse_changed(key, path, target)
    return target


def _refuse_changed(key: str, path: str, target: Callable) -> None:
    """Raise UserError if the target's file has changed since this process imported it: a further run would train the old code."""
    try:
        file = inspect.getfile(target)
        with open(file, "rb") as content:
            now = hashlib.file_digest(content, "sha256").hexdigest()
    except (TypeError, OSError):  # it is not of a file
        return
    before = _resolved.get(path)
    if before is not None and before[0] is target and before[1] != now:
        raise UserError(
            f"{key}={path}: {file} has changed since this process imported it, and would still run as it was. Restart the process (in a "
            f"notebook, the kernel), or call importlib.reload(sys.modules[{target.__module__!r}]) first."
        )
    _resolved[path] = target, now


def check_kwargs(
    key: str, path: str, target: Callable, kwargs: dict, known: Collection[str], makes: str, prefix: str | None = None
) -> None:
    """Raise UserError for arguments that the target does not take, and for those that it needs and nobody gives.

    known: names of arguments that mpx gives if the target asks for them. prefix: of the arguments' keys; None: that of `key`, such as
    model.kwargs for model._target_.
    """
    prefix, parameters = prefix or f"{key.partition('.')[0]}.kwargs", inspect.signature(target).parameters.values()
    allowed = accepted(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    for name in kwargs:
        if name not in allowed and not takes_any:
            raise UserError(unknown(name, path, allowed, prefix))
    for p in parameters:
        if p.kind is inspect.Parameter.POSITIONAL_ONLY and p.default is inspect.Parameter.empty:
            raise UserError(f"{key}={path} takes {p.name} by its place only. Name a class or function that makes {makes}.")
        if p.name in allowed and p.default is inspect.Parameter.empty and p.name not in kwargs and p.name not in known:
            raise UserError(f"{key}={path} needs the argument {p.name}: set +{prefix}.{p.name}=…")


def accepted(function: Callable) -> list[str]:
    """Names of the arguments that a caller can give by keyword."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in by_keyword and p.name != "self"]


def unknown(argument: str, name: str, allowed: Iterable[str], prefix: str = "model.kwargs") -> str:
    """The message for an argument that the target or network `name` does not have."""
    allowed = list(allowed)
    return f"{prefix}.{argument} is not an argument of {name}; allowed: {', '.join(allowed)}.{nearest(argument, allowed)}"
