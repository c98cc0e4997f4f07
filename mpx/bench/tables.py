"""Tables of measured kernels, with one row per kernel or one column per size, and the notes below them."""

from collections.abc import Iterable, Sequence
from typing import Any

from mpx.bench.work import Row
from mpx.compare.served import cpu, device_of
from mpx.measure.ceilings import Card, card
from mpx.render.table import Column, Table, console, print_table
from mpx.system.printing import number, rate

MAX_NAMED = 6  # kernels in one line
RATE = "rate"  # takes the place of a format specification
About = dict[str, Any]  # what, device, exclusive, exclusive_reason, environment, folder


def flat(title: str, rows: Sequence[Row], columns: Sequence[tuple[str, str, str | None]]) -> None:
    """Print one line per row. columns: (head, key, format specification of its number; None for words)."""
    heads = [Column(head, words=spec is None) for head, _, spec in columns]
    lines = [
        [str(row[key] or "") if spec is None else _figure(row[key], spec) for _, key, spec in columns]
        for row in rows
    ]
    print_table(Table(title, heads, lines))


def pivot(
    title: str, rows: Sequence[Row], down: Sequence[str], across: str, value: str, spec: str = RATE
) -> None:
    """Print one line per combination of the keys `down`, and one column per value of `across`, in the order
    of the rows.

    A line without any figure is left out, and so is an empty table: the reasons that follow say why.
    """
    heads = list(dict.fromkeys(row[across] for row in rows))
    lines: dict[tuple, dict[Any, Any]] = {}
    for row in rows:
        if row[value] is not None:
            lines.setdefault(tuple(str(row[key]) for key in down), {})[row[across]] = row[value]
    columns = [*(Column(key, words=True) for key in down), *(Column(f"{head}") for head in heads)]
    if lines:
        cells = [
            [*names, *(_figure(found.get(head), spec) for head in heads)] for names, found in lines.items()
        ]
        print_table(Table(title, columns, cells))


def say(text: str) -> None:
    console().print(text)


def _figure(value: float | None, spec: str) -> str:
    return rate(value) if spec == RATE else number(value, spec)


def device_name(about: About) -> str:
    if about["device"] == "cpu":
        return cpu(about["environment"]) or "a CPU"
    return device_of(about) or "a GPU"


def vendor(about: About) -> Card | None:
    """The vendor's figures of the device, if its data sheet is known."""
    return card(about["environment"]["device"][0]) if about["device"] == "cuda" else None


def notes(about: About, rows: Iterable[Row], names: Sequence[str]) -> None:
    """Print why kernels were not measured, whose the vendor's figures are, and that other programs disturbed.

    names: the keys that name a kernel.
    """
    reasons: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(row["reason"], {})[" ".join(str(row[name]) for name in names)] = None
    for reason, kernels in reasons.items():
        few = list(kernels)
        more = f" and {len(few) - MAX_NAMED} more" if len(few) > MAX_NAMED else ""
        say(f"– {', '.join(few[:MAX_NAMED])}{more}: {reason}")
    if (known := vendor(about)) is not None:
        say(f"Vendor's peaks: {known.source}.")
    if about["exclusive"] is False:
        say(f"Not alone on the device ({about['exclusive_reason']}): the rates are too low.")
