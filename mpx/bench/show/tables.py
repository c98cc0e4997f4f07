"""Tables of measured kernels: one row per kernel, or one column per size."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mpx.measure.devices import BUSY
from mpx.measure.peaks import card
from mpx.render.run_tables import number

WORD = 20  # letters; longer ones are broken where a table would be too wide for the page
Row = dict[str, Any]
About = dict[str, Any]  # what, device, exclusive, exclusive_reason, environment


def flat(title: str, rows: Sequence[Row], columns: Sequence[tuple[str, str, str | None]]) -> Table:
    """columns: (header, key, how its number reads; None for words)."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for head, key, spec in columns:
        words = [] if spec else [word for row in rows for word in str(row[key]).split()]
        whole = min(max(map(len, words), default=0), WORD)  # a word that is broken off reads badly
        table.add_column(head, justify="left" if spec is None else "right", overflow="fold", min_width=whole or None)
    for row in rows:
        table.add_row(*(str(row[key]) if spec is None else _figure(row[key], spec) for _, key, spec in columns))
    return table


def pivot(title: str, rows: Sequence[Row], down: Sequence[tuple[str, str]], across: str, value: str, spec: str = "rate") -> Table:
    """One line per combination of the `down` keys ((header, key)), one column per value of `across`, in the order of the rows."""
    heads = list(dict.fromkeys(row[across] for row in rows))
    lines: dict[tuple, dict[Any, Any]] = {}
    for row in rows:
        lines.setdefault(tuple(str(row[key]) for _, key in down), {})[row[across]] = row[value]
    table = Table(title=title, title_justify="left", header_style="bold")
    for head, _ in down:
        table.add_column(head, overflow="fold")
    for head in heads:
        table.add_column(f"{head}", justify="right")
    for names, values in lines.items():
        if any(found is not None for found in values.values()):
            table.add_row(*names, *(_figure(values.get(head), spec) for head in heads))
    return table


def say_table(out: Console, table: Table) -> None:
    """Where nothing of it was measured, the reasons that follow say so."""
    if table.row_count:
        out.print(table)


def _figure(value: float | None, spec: str) -> str:
    return rate(value) if spec == "rate" else number(value, spec)


def rate(value: float | None) -> str:
    """About three digits, from 0.00031 to 1,979."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def device_name(about: About) -> str:
    environment = about["environment"]
    return environment["device"][0] if about["device"] == "cuda" else cpu_name(about)


def cpu_name(about: About) -> str:
    environment = about["environment"]
    return f"{environment['cpu'] or 'the CPU'}, {environment['threads']} thread{'s' if environment['threads'] > 1 else ''}"


def say_why(out: Console, rows: Iterable[Row], names: Sequence[str]) -> None:
    """One line per reason for which something was not measured, with whom it concerns, under the keys `names`."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            found.setdefault(row["reason"], {})[" ".join(str(row[name]) for name in names)] = None
    for reason, who in found.items():
        few = list(who)
        out.print(f"– {', '.join(few[:6])}{f' and {len(few) - 6} more' if len(few) > 6 else ''}: {reason}", highlight=False)


def say_peaks(out: Console, about: About) -> None:
    """Where the vendor's figures are from, if this card has any."""
    if about["device"] == "cuda" and (found := card(about["environment"]["device"][0])) is not None:
        out.print(f"Vendor's peaks: {found.source}.", highlight=False)


def say_alone(out: Console, about: About, *, cpu_too: bool = False) -> None:
    """cpu_too: the CPU was measured beside the device."""
    if about["exclusive"] is False:
        out.print(f"Not alone on the device ({about['exclusive_reason']}): the rates are too low.", highlight=False)
    busy = about.get("cpu_busy")
    if busy is not None and busy > BUSY and (cpu_too or about["device"] == "cpu"):
        out.print(f"Other work kept {busy:.0%} of the CPU's cores busy when this began: the rates of the CPU are too low.", highlight=False)
