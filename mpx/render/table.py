"""One model of a table, and its forms: terminal, Markdown, HTML (in templates/) and CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from mpx.compare.words import UNKNOWN
from mpx.render.plots.looks import Look

if TYPE_CHECKING:  # rich takes a while to import, and a report needs none of it
    from rich.console import Console
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Figure:
    """A number as people read it, which the page shows in full when the pointer rests on it."""

    text: str
    value: float | int | None

    @property
    def full(self) -> str:
        return repr(self.value)


Line = tuple[str | Figure, ...]


@dataclass(frozen=True)
class Cell:
    """text: on the terminal and in Markdown. All else is the page's."""

    text: str
    main: Line = ()  # () for the text
    small: tuple[Line, ...] = ()  # lines below it
    badge: str | None = None  # the kind of decision: good, bad or open
    look: Look | None = None  # the setting's sign in the plots
    name: bool = False  # a setting's, whose changes may be broken after "="
    html: str | None = None  # instead of all of the above


@dataclass(frozen=True)
class Column:
    head: str
    words: bool = False  # set left, and may be wrapped; figures are set right, and may not
    min_width: int | None = None  # on the terminal, in characters
    max_width: int | None = None


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]

    def known(self, least: int = 1) -> "Table":
        """Without the columns in which nothing is known, which would crowd the others. The first `least` always stay."""
        kept = [i for i in range(len(self.columns)) if i < least or any(text_of(row[i]) not in ("", UNKNOWN) for row in self.rows)]
        return Table(self.title, [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows])

    def cells(self) -> list[list[Cell]]:
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


def text_of(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def words(*heads: str) -> list[Column]:
    return [Column(head, words=True) for head in heads]


def figures(*heads: str) -> list[Column]:
    return [Column(head) for head in heads]


def console() -> "Console":
    """A terminal's own width, or 120 columns where the output goes to a file."""
    from rich.console import Console

    as_it_is = {"highlight": False, "markup": False, "emoji": False}  # names may hold what rich would take for markup
    found = Console(**as_it_is)
    return found if found.is_terminal else Console(width=120, **as_it_is)


def print_table(table: Table, *, framed: bool = True, head: bool = True) -> None:
    console().print(on_terminal(table, framed=framed, head=head))


def on_terminal(table: Table, *, framed: bool = True, head: bool = True) -> "RichTable":
    """framed: with lines around every column; without them figures are never wrapped."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    found = RichTable(
        title=Text(table.title, "table.title") if table.title else None, title_justify="left", header_style="bold", show_header=head,
        box=box.HEAVY_HEAD if framed else box.SIMPLE_HEAD, pad_edge=framed,
    )  # fmt: skip
    for column in table.columns:
        found.add_column(
            Text(column.head), justify="left" if column.words else "right", overflow="fold", no_wrap=not framed and not column.words,
            min_width=column.min_width, max_width=column.max_width,
        )  # fmt: skip
    for row in table.rows:
        found.add_row(*(Text(text_of(cell)) for cell in row))
    return found


def in_markdown(table: Table) -> str:
    heads = [escaped(column.head) for column in table.columns]
    lines = [heads, ["---" if column.words else "---:" for column in table.columns]]
    lines += [[escaped(text_of(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """The text, with the signs of Markdown and HTML taken literally."""
    for sign in "\\`*_[]|#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(escape(text, quote=False).split())


def in_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and one line per row. Keys that a row lacks are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
