"""Infer masks from the zeros of the weights, for a pruned model that was saved as a plain state_dict and loaded again."""

from collections.abc import Callable, Mapping

from torch import Tensor

from mpx.compat.asp.calculators import checked
from mpx.compat.asp.eligible import Place
from mpx.compat.asp.enforce import full_precision

MIN_FILLED = 0.5  # minimum share of non-zeros among the kept values; all-zero and identity initialisations have fewer


def infer_masks(
    places: list[Place], masks: Mapping[str, Tensor], calculate: Callable[[Tensor], Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Returns (inferred masks by name, names of weights that contradict their current mask without having the pattern).

    A mask is inferred for a weight that has the calculator's pattern and contradicts its current mask, if any.
    """
    found, strange = {}, []
    for place in places:
        weight, held = full_precision(place.parameter), masks.get(place.name)
        if weight.is_meta or (held is not None and not held.all() and not _beyond(weight, held)):
            continue
        if (mask := inferred(weight, place.name, calculate)) is not None:
            found[place.name] = mask
        elif held is not None and not held.all():
            strange.append(place.name)
    return found, strange


def inferred(weight: Tensor, name: str, calculate: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The calculator's mask if it prunes only zeros, at least one, and keeps mostly non-zeros; None otherwise."""
    full = weight.ne(0)
    if full.all() or not full.any():  # dense weights skip the calculation
        return None
    mask = checked(calculate(weight), weight, name)
    fits = not mask.all() and not _beyond(weight, mask) and full.sum() >= MIN_FILLED * mask.sum()
    return mask if fits else None


def _beyond(weight: Tensor, mask: Tensor) -> bool:
    """Whether any value that the mask prunes is non-zero."""
    return bool((weight.ne(0) & ~mask.to(weight.device)).any())
