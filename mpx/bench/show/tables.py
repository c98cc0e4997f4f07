"""Tables of measured kernels, with one row per kernel or one column per size, and the notes below them."""

from collections.abc import Iterable, Sequence
from typing import Any

from mpx.compare.deployed import cpu, device_of
from mpx.compare.words import number, rate
from mpx.measure.exclusive import BUSY
from mpx.measure.peaks import card
from mpx.render.table import Column, Table, console, print_table

MAX_NAMED = 6  # kernels in one line
RATE = "rate"  # takes the place of a format specification
Row = dict[str, Any]
About = dict[str, Any]  # what, device, exclusive, exclusive_reason, environment


def flat(title: str, rows: Sequence[Row], columns: Sequence[tuple[str, str, str | None]]) -> Table:
    """One line per row. columns: (head, key, format specification of its number; None for words)."""
    heads = [Column(head, words=spec is None) for head, _, spec in columns]
    return Table(title, heads, [[str(row[key]) if spec is None else _figure(row[key], spec) for _, key, spec in columns] for row in rows])


def pivot(title: str, rows: Sequence[Row], down: Sequence[tuple[str, str]], across: str, value: str, spec: str = RATE) -> Table:
    """One line per combination of the `down` keys ((head, key)), one column per value of `across`, in the order of the rows."""
    heads = list(dict.fromkeys(row[across] for row in rows))
    lines: dict[tuple, dict[Any, Any]] = {}
    for row in rows:
        lines.setdefault(tuple(str(row[key]) for _, key in down), {})[row[across]] = row[value]
    columns = [*(Column(head, words=True) for head, _ in down), *(Column(f"{head}") for head in heads)]
    known = {names: values for names, values in lines.items() if any(found is not None for found in values.values())}
    return Table(title, columns, [[*names, *(_figure(values.get(head), spec) for head in heads)] for names, values in known.items()])


def say_table(table: Table) -> None:
    """Print a table, unless nothing was measured; the reasons that follow say why."""
    if table.rows:
        print_table(table)


def say(text: str) -> None:
    console().print(text)


def _figure(value: float | None, spec: str) -> str:
    return rate(value) if spec == RATE else number(value, spec)


def device_name(about: About) -> str:
    return device_of(about) or "a CPU"


def cpu_name(about: About) -> str:
    return cpu(about["environment"]) or "a CPU"


def say_why(rows: Iterable[Row], names: Sequence[str]) -> None:
    """One line per reason why a kernel was not measured, with the kernels that it concerns. names: the keys that name a kernel."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            found.setdefault(row["reason"], {})[" ".join(str(row[name]) for name in names)] = None
    for reason, who in found.items():
        few = list(who)
        more = f" and {len(few) - MAX_NAMED} more" if len(few) > MAX_NAMED else ""
        say(f"– {', '.join(few[:MAX_NAMED])}{more}: {reason}")


def say_peaks(about: About) -> None:
    """Print the source of the vendor's figures for this card, if there are any."""
    if about["device"] == "cuda" and (found := card(about["environment"]["device"][0])) is not None:
        say(f"Vendor's peaks: {found.source}.")


def say_alone(about: About, *, cpu_too: bool = False) -> None:
    """Print that other programs used the device or the CPU. cpu_too: the CPU was measured beside the device."""
    if about["exclusive"] is False:
        say(f"Not alone on the device ({about['exclusive_reason']}): the rates are too low.")
    busy = about.get("cpu_busy")
    if busy is not None and busy > BUSY and (cpu_too or about["device"] == "cpu"):
        say(f"Other work kept {busy:.0%} of the CPU's cores busy when this began: the rates of the CPU are too low.")
