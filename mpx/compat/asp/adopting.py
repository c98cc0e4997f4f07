"""Masks that weights show by their zeros: of a model that was pruned, saved as a plain state_dict and loaded again."""

from collections.abc import Callable, Mapping

from torch import Tensor

from mpx.compat.asp.calculators import checked
from mpx.compat.asp.eligible import Place
from mpx.compat.asp.hold import exact

FILLED = 0.5  # least share of non-zero values among those that a mask keeps: all-zero and identity initialisations have fewer


def look(places: list[Place], masks: Mapping[str, Tensor], calculate: Callable[[Tensor], Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """(the masks of weights that have the calculator's pattern and do not agree with their mask in force, by the places' names;
    the names of weights that have neither the pattern nor the zeros of their mask in force)."""
    found, strange = {}, []
    for place in places:
        weight, held = exact(place.parameter), masks.get(place.name)
        if weight.is_meta or (held is not None and not held.all() and not _beyond(weight, held)):
            continue
        if (mask := shown(weight, place.name, calculate)) is not None:
            found[place.name] = mask
        elif held is not None and not held.all():
            strange.append(place.name)
    return found, strange


def shown(weight: Tensor, name: str, calculate: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The calculator's mask, where it prunes zeros alone, and some, and most of what it keeps is not zero; None otherwise."""
    full = weight.ne(0)
    if full.all() or not full.any():  # the first spares every dense weight the calculation
        return None
    mask = checked(calculate(weight), weight, name)
    shows = not mask.all() and not _beyond(weight, mask) and full.sum() >= FILLED * mask.sum()
    return mask if shows else None


def _beyond(weight: Tensor, mask: Tensor) -> bool:
    """Whether a value that the mask prunes is not zero."""
    return bool((weight.ne(0) & ~mask.to(weight.device)).any())
