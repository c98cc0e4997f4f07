"""The one table model, and its terminal and Markdown forms (HTML is in templates/)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from mpx.compare.words import UNKNOWN
from mpx.render.colours import Style
from mpx.system.printing import shown

if TYPE_CHECKING:  # rich is slow to import, and a report does not need it
    from rich.console import Console
    from rich.table import Table as RichTable


GAP = 3  # characters between two columns
MIN_WORDS_WIDTH = 24  # characters of a column of words, which may wrap; longer words break


@dataclass(frozen=True)
class Figure:
    """A rounded number, which HTML shows at full precision on hover."""

    text: str
    value: float | int | None

    @property
    def full(self) -> str:
        return repr(self.value)


Line = tuple[str | Figure, ...]


@dataclass(frozen=True)
class Cell:
    """text: for the terminal and Markdown. All other fields are for HTML."""

    text: str
    main: Line = ()  # () means the text
    small: tuple[Line, ...] = ()  # lines below it
    badge: str | None = None  # the kind of decision: good, bad or open
    style: Style | None = None  # the setting's marker in the plots
    name: bool = False  # a setting's name, which may be broken after "="
    html: str | None = None  # replaces all of the above


@dataclass(frozen=True)
class Column:
    head: str
    words: bool = False  # left-aligned, may wrap; numbers are right-aligned and do not wrap
    max_width: int | None = None  # on the terminal, in characters


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]

    def known(self, least: int = 1) -> "Table":
        """The table without columns of unknown values. The first `least` columns always stay."""
        kept = [
            i
            for i in range(len(self.columns))
            if i < least or any(text_of(row[i]) not in ("", UNKNOWN) for row in self.rows)
        ]
        return Table(
            self.title, [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows]
        )

    def cells(self) -> list[list[Cell]]:
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


def text_of(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def words(*heads: str) -> list[Column]:
    return [Column(head, words=True) for head in heads]


def console() -> "Console":
    """A console as wide as the terminal, or 120 columns if the output is not a terminal."""
    from rich.console import Console

    out = Console(highlight=False, markup=False, emoji=False)  # rich would read some names as markup
    if not out.is_terminal:
        out.width = 120
    return out


def print_table(table: Table, *, framed: bool = True, head: bool = True) -> None:
    """Print it, in several parts where the terminal is too narrow for all columns side by side."""
    out = console()
    for part, fits in parts(table, out.width - framed):
        out.print(on_terminal(part, framed=framed, head=head, wrap=not fits))


def parts(table: Table, width: int) -> list[tuple[Table, bool]]:
    """The columns in one or more tables that each begin with the table's first columns of words, and whether
    that fits the width.

    A number that is cut or broken would read as another number. Words wrap, but do not break where there is
    room for them.
    """
    texts = [
        [column.head, *(text_of(row[i]) for row in table.rows)] for i, column in enumerate(table.columns)
    ]
    rooms = [_room(column, cells) for column, cells in zip(table.columns, texts, strict=True)]
    first = next((i for i, column in enumerate(table.columns) if not column.words), len(table.columns))
    groups = [[*range(first)]]
    for i in range(first, len(table.columns)):
        if len(groups[-1]) > first and sum(rooms[at][0] for at in [*groups[-1], i]) > width:
            groups.append([*range(first)])
        groups[-1].append(i)
    tables: list[tuple[Table, bool]] = []
    for group in groups:
        columns, spare = [], width - sum(rooms[i][0] for i in group)
        fits = spare >= 0
        for i in group:
            least, whole = rooms[i]
            more = min(whole - least, max(spare, 0))
            columns.append(
                replace(table.columns[i], max_width=least + more - GAP) if fits else table.columns[i]
            )
            spare -= more
        tables.append(
            (
                Table(
                    "" if tables else table.title, columns, [[row[i] for i in group] for row in table.rows]
                ),
                fits,
            )
        )
    return tables


def _room(column: Column, texts: Sequence[str]) -> tuple[int, int]:
    """The least and the greatest width of a column in characters, with the gap beside it."""
    from rich.cells import cell_len

    lines = [line for text in texts for line in shown(text).split("\n")]
    longest = max(map(cell_len, lines))
    whole = min(longest, column.max_width or longest)
    if not column.words:
        return whole + GAP, whole + GAP
    word = max((cell_len(word) for line in lines for word in line.split()), default=0)
    return min(whole, MIN_WORDS_WIDTH, max(word, -(-whole // 2))) + GAP, whole + GAP


def on_terminal(table: Table, *, framed: bool, head: bool, wrap: bool) -> "RichTable":
    """framed: draw lines around every column. wrap: numbers too, as words always do."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=Text(shown(table.title), "table.title") if table.title else None, title_justify="left",
        header_style="bold", show_header=head,
        box=box.HEAVY_HEAD if framed else box.SIMPLE_HEAD, pad_edge=framed,
    )  # fmt: skip
    for column in table.columns:
        drawn.add_column(
            Text(shown(column.head)), justify="left" if column.words else "right", overflow="fold",
            no_wrap=not wrap and not column.words,
            max_width=column.max_width,
        )  # fmt: skip
    for row in table.rows:
        drawn.add_row(*(Text(shown(text_of(cell))) for cell in row))
    return drawn


def in_markdown(table: Table) -> str:
    heads = [escaped(column.head) for column in table.columns]
    lines = [heads, ["---" if column.words else "---:" for column in table.columns]]
    lines += [[escaped(text_of(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """The text with the special characters of Markdown and HTML escaped, and those of GitHub's formulas and
    struck out text.
    """
    for sign in "\\`*_[]|#":
        text = text.replace(sign, "\\" + sign)
    safe = escape(shown(text), quote=False).replace("$", "&#36;").replace("~", "&#126;")
    return " ".join(safe.split())
