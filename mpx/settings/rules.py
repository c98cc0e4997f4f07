"""The kinds of rules for values. Each can check a value and say in words what is allowed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

MAX_COUNT = 2**31 - 1  # above it, sizes and counts no longer fit PyTorch's int32 indices or memory


@dataclass(frozen=True)
class Rule:
    allowed: str  # ends the sentence "must be …"
    fits: Callable[[Any], bool]
    example: str
    # False: only says where files are or what is shown, so it is not part of the run's name
    changes_result: bool = True
    largest: int | None = None  # the largest whole number, where `allowed` does not say it


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def as_typed(value: Any) -> str:
    """A value as a user types it: null, true and false instead of Python's words."""
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )


def _all_as_typed(options: tuple) -> str:
    return ", ".join(map(as_typed, options))


def _or(also: tuple) -> str:
    return f", or {_all_as_typed(also)}" if also else ""


def whole(
    low: int, high: int | None = None, *, also: tuple = (), example: Any = None, result: bool = True
) -> Rule:
    """A whole number from `low` to `high` (None: the largest count), or one of the words in `also` (None is
    typed null).
    """
    upper = f" and at most {high}" if high is not None else ""
    return Rule(
        f"a whole number of at least {low}{upper}{_or(also)}",
        lambda v: (
            any(v is o or v == o for o in also)
            or (_is_int(v) and low <= v <= (MAX_COUNT if high is None else high))
        ),
        str(example if example is not None else max(low, 1)),
        result,
        MAX_COUNT if high is None else None,
    )


def number(
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    also: tuple = (),
    example: Any,
) -> Rule:
    """A finite number between `low` and `high`; `open_*` leaves that end out."""
    bounds = f"{'above' if open_low else 'of at least'} {low:g}"
    if high != math.inf:
        bounds += f" and {'below' if open_high else 'at most'} {high:g}"

    def fits(value: Any) -> bool:
        if any(value is option for option in also):
            return True
        if not _is_number(value):
            return False
        return (value > low if open_low else value >= low) and (value < high if open_high else value <= high)

    return Rule(f"a number {bounds}{_or(also)}", fits, str(example))


def choice(*options: Any, result: bool = True) -> Rule:
    def fits(value: Any) -> bool:
        return any(type(value) is type(option) and value == option for option in options)

    return Rule(f"one of {_all_as_typed(options)}", fits, as_typed(options[0]), result)


def flag(*, result: bool = True) -> Rule:
    return Rule("true or false", lambda v: isinstance(v, bool), "true", result)


def text(*, also: tuple = (), example: str = "name", result: bool = True) -> Rule:
    return Rule(
        f"a text{_or(also)}", lambda v: v in also or (isinstance(v, str) and bool(v.strip())), example, result
    )


def folder_name(example: str) -> Rule:
    """A name that is one folder: no separators, not hidden, not Hydra's own."""
    return Rule(
        "a folder's name (letters, digits, '.', '_', '-', not starting with '.' or '_')",
        lambda v: isinstance(v, str) and v[:1] not in "._" and all(c.isalnum() or c in "._-" for c in v),
        example,
        False,
    )


def many(item: Rule, *, least: int = 0, most: int | None = None, example: str = "[]") -> Rule:
    """A list of `least` to `most` members that each fit `item`."""
    size = f" of {least}" if least == most else f" of at least {least}" if least else ""
    return Rule(
        f"a list{size}, each {item.allowed}",
        lambda v: (
            isinstance(v, (list, tuple))
            and len(v) >= least
            and (most is None or len(v) <= most)
            and all(item.fits(i) for i in v)
        ),
        example,
    )


def either(first: Rule, second: Rule) -> Rule:
    """A value that fits one of the two."""
    return replace(
        first, allowed=f"{first.allowed}; or {second.allowed}", fits=lambda v: first.fits(v) or second.fits(v)
    )


def one_or_more(item: Rule) -> Rule:
    """A value that fits `item`, or a list of such."""
    several = many(item, least=1)
    return replace(
        item, allowed=f"{item.allowed}, or a list of these", fits=lambda v: item.fits(v) or several.fits(v)
    )
