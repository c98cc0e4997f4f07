"""The arguments of the public parts keep the rules of the command's keys."""

from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError, nearest
from mpx.settings.fields import FIELDS


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
    return dict(allowed) | dict(given)
