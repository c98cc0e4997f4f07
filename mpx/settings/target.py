"""Build what the user names by Hydra's conventions: `_target_=package.module.name`, found from the current
folder, with its arguments.
"""

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from mpx.errors import UserError


def build(key: str, settings: Mapping[str, Any], prefix: str, known: Mapping[str, Any] | None = None) -> Any:
    """Call the target with the arguments in `settings`; those with a `_target_` of their own are built first
    (`_partial_`, `_args_`, …).

    key: of the target, as model._target_. prefix: of its arguments' keys, as model.kwargs. known: what the
    target gets where it has an argument of this name. Raises UserError for a target that cannot be imported,
    and for arguments that it does not take or lacks.
    """
    path = settings["_target_"]
    if os.getcwd() not in sys.path:
        # never removed, since the user's module may import its neighbours later
        sys.path.insert(0, os.getcwd())
    try:
        target = instantiate(
            {"_convert_": "all", **settings, "_target_": path.replace(":", "."), "_partial_": True}
        )
    except InstantiationException as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        reason = " ".join(str(cause).split()).replace(" full_key:", ", for")
        raise UserError(f"{key}={path} cannot be built in {os.getcwd()}: {reason}.") from error
    try:
        signature = inspect.signature(target.func)
        given = {
            name: value for name, value in (known or {}).items() if name in signature.parameters
        } | target.keywords
        signature.bind(*target.args, **given)
    except ValueError as error:
        raise UserError(
            f"{key}={path} does not say which arguments it takes. Name a class or function of your own."
        ) from error
    except TypeError as error:
        raise UserError(
            f"{key}={path}: {error}. It takes {', '.join(signature.parameters)}. Set an argument as "
            f"+{prefix}.NAME=VALUE."
        ) from error
    return target.func(*target.args, **given)


def named(key: str, settings: Any) -> Iterator[tuple[str, Any]]:
    """(key, path) of every target in `settings`, those of arguments too. All of them are imported and run by
    `build`.
    """
    if isinstance(settings, Mapping):
        if "_target_" in settings:
            yield f"{key}._target_", settings["_target_"]
        for name, value in settings.items():
            yield from named(f"{key}.{name}", value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from named(key, value)
