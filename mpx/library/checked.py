"""The arguments of the public parts have the defaults and the rules of the command's keys."""

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from mpx.errors import UserError, nearest
from mpx.settings.extras import CONF
from mpx.settings.fields import FIELDS
from mpx.settings.values import as_dict


def defaults(group: str, choice: str) -> dict[str, Any]:
    """The content of conf/<group>/<choice>.yaml, which has the reasons."""
    return as_dict(OmegaConf.load(CONF / group / f"{choice}.yaml"))


def checked(group: str, given: Mapping[str, Any], allowed: Mapping[str, Any], part: str) -> dict[str, Any]:
    """`allowed` (names and defaults) with the values `given`. group: of the keys in mpx.settings.fields, such as `sparsity`.

    Raises UserError for an argument that `part` does not take, or a value that breaks the key's rule.
    """
    for name, value in given.items():
        if name not in allowed:
            raise UserError(f"{part}: no argument {name}.{nearest(name, allowed)} It takes {', '.join(allowed)}.")
        rule = FIELDS[f"{group}.{name}"]
        if not rule.fits(value):
            raise UserError(f"{part}({name}={value!r}) must be {rule.allowed}. For example {name}={rule.example}.")
    return dict(allowed) | {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
