"""Private API of NVIDIA's apex 25.05: the state of its ASP, which it keeps in attributes of the class."""

from typing import Any

# The attributes before the first initialisation; a type is called for the value.
EMPTY = {
    "_ASP__model": None,
    "_ASP__optimizer": None,
    "_ASP__sparse_parameters": list,
    "_ASP__all_parameters": list,
}


def empty(asp: Any) -> None:
    """Let ASP be as before its first initialisation. It refuses a second one, and offers no way back."""
    for name, value in EMPTY.items():
        setattr(asp, name, value() if value else None)


def sparse_parameters(asp: Any) -> list[tuple]:
    """(…, layer, name of the parameter, parameter, mask, pruned values) of each pruned parameter. ASP returns
    no masks.
    """
    return asp._ASP__sparse_parameters
