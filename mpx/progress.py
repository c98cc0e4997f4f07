"""How far a long step of a command has got. Only a terminal shows it, and only then rich is imported."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def track(items: Sequence[T] | Iterable[T], doing: str, total: int) -> Iterator[T]:
    """The items, with a bar on stderr that disappears at the end."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as show

    yield from show(items, doing, total=total, console=Console(stderr=True), transient=True)
