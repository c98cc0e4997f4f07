"""Parameters of a product of which a part is enough for every day."""

from collections.abc import Iterable, Sequence

import pytest


def pairs(first: Iterable, second: Sequence) -> list:
    """Their product. Each of `first` meets one of `second` in turn; its other pairs are slow."""
    return [
        pytest.param(
            one,
            other,
            id=f"{_id(one)}-{_id(other)}",
            marks=[] if at == number % len(second) else pytest.mark.slow,
        )
        for number, one in enumerate(first)
        for at, other in enumerate(second)
    ]


def _id(value) -> str:
    return value if isinstance(value, str) else " ".join(value)
