"""What a command prints: text that is safe on a terminal, numbers, numbers of things, lengths of time, bars
of long steps.
"""

import io
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Control characters, which a terminal obeys; marks that reverse the order of text; and lone surrogates, which
# no encoding has.
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

UNKNOWN = "–"


def shown(text: str) -> str:
    """The text with every character that is not safe to print spelled out, as in `\\x1b[31m`.

    Line breaks stay.
    """
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def how_many(count: int, thing: str) -> str:
    """`1 run`, `2 runs`, `1,000 runs`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """A readable duration: `41 s`, `12 min`, `3 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def number(value: float | None, spec: str, unit: str = "") -> str:
    """The formatted number, or `–` if unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:{spec}}".removesuffix(".") + unit  # 1236 has four digits: #.4g would print 1236.


def rate_spec(value: float) -> str:
    """Three significant digits, or a whole number from 100: 0.482, 31.5, 1,234."""
    return ",.0f" if abs(value) >= 100 else "#.3g"


def rate(value: float | None, unit: str = "") -> str:
    return number(value, rate_spec(value or 0.0), unit)


def digits(value: float | None, decimals: int) -> str:
    """A format with at least this many decimals, and with two significant digits for a small value: 3.91 GiB,
    0.0023 GiB.
    """
    return f",.{max(decimals, 1 - math.floor(math.log10(value)))}f" if value else f",.{decimals}f"


def share_digits(value: float | None) -> str:
    """As `digits`, for a share in percent: 8.750%, 0.0033%."""
    return digits(value and 100 * value, 3).replace("f", "%")


def signed(value: float | None, spec: str) -> str:
    return number(value, f"+z{spec}").replace("-", "−")  # z: no −0.0000


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose cells show HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def replace_unprintable() -> None:
    """Let stdout and stderr print a question mark for a character that their encoding lacks.

    A front door calls this first.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_nowhere() -> None:
    """Nobody reads stdout any more, as after `| head -1`: what is still printed raises no further error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def track(items: Iterable[T], doing: str, total: int) -> Iterator[T]:
    """Yield the items while a transient bar on stderr shows the progress. Only on a terminal, which imports
    rich.
    """
    if sys.stderr is None or not sys.stderr.isatty():  # None where there is no console at all
        yield from items
        return
    from rich.console import Console
    from rich.progress import track as show

    yield from show(items, doing, total=total, console=Console(stderr=True), transient=True)
