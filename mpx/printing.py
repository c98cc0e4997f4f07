"""Printing that never fails: what is printed informs, and the record says how a command ended.

Without this, a reader that has gone (`| head -1`), a full disk behind `> log.txt` or a character that the terminal's encoding lacks would
end a training of days.
"""

import io
import os
import re
import select
import sys
from typing import TextIO

# Control characters, which a terminal obeys; marks that reverse the order of text; and lone surrogates, which no encoding has.
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str) -> str:
    """The text with every character that is not safe to print spelled out, as in `\\x1b[31m`. Line breaks stay."""
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


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, whose cells show HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def print_without_failing() -> None:
    """Let stdout and stderr drop what cannot be written. A front door calls this first.

    Does nothing to streams that something else, such as a test or a notebook, has put in their place.
    """
    _open_missing()
    if sys.stdout is sys.__stdout__:
        sys.stdout = _steady(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _steady(sys.stderr, 2)


class SteadyFile(io.FileIO):
    """A file whose writes always succeed, even if its target accepts nothing."""

    def write(self, data: bytes) -> int:
        left = whole = memoryview(data).cast("B")
        try:
            while left:
                if (written := super().write(left)) is None:  # another process has made a shared terminal or pipe non-blocking
                    select.select([], [self], [])
                else:
                    left = left[written:]
        except OSError:
            pass
        return len(whole)


def _open_missing() -> None:
    """Open /dev/null in place of closed standard streams (`2>&-`), whose numbers the next opened files would get."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def _steady(stream: TextIO | None, number: int) -> TextIO:
    """stream: None where Python found it closed."""
    if stream is not None:
        stream.flush()
    raw, unbuffered = SteadyFile(number, "w", closefd=False), stream is not None and stream.write_through  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="replace",
        line_buffering=number == 2 or raw.isatty(),
        write_through=unbuffered,
    )
