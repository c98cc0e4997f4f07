"""Progress bars for the long steps of a command. They show only on a terminal, and only then import rich."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], doing: str, total: int) -> Iterator[T]:
    """Yield the items while a transient bar on stderr shows the progress."""
    if sys.stderr is None or not sys.stderr.isatty():  # None where there is no console at all
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as show

    yield from show(items, doing, total=total, console=Console(stderr=True), transient=True)
