"""The one table model, and its terminal and Markdown forms (HTML is in templates/)."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

from mpx.system.printing import UNKNOWN, shown

if TYPE_CHECKING:  # rich is slow to import, and a report does not need it
    from rich.console import Console
    from rich.table import Table as RichTable

    from mpx.render.picture import Style


GAP = 3  # characters between two columns
LONG_WORD = 40  # characters; longer words of a column of words may break


@dataclass(frozen=True)
class Cell:
    """text: the same in every format. The other fields are for HTML."""

    text: str
    badge: str | None = None  # the kind of decision: good, bad or open
    style: "Style | None" = None  # of a setting: its marker in the plots
    html: str | None = None  # replaces the text


@dataclass(frozen=True)
class Column:
    head: str
    words: bool = False  # left-aligned, may wrap; numbers are right-aligned and do not wrap


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]

    def known(self, least: int) -> "Table":
        """The table without columns in which all is unknown or zero. The first `least` columns stay."""
        kept = [
            i
            for i in range(len(self.columns))
            if i < least or any(text_of(row[i]).strip("0.%") not in ("", UNKNOWN) for row in self.rows)
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
    terminal = out.width - framed
    for part in parts(table, terminal):
        rooms = [room(part, i) for i in range(len(part.columns))]
        spare = terminal - sum(least for least, _ in rooms)
        # a number that is cut would read as another number: rather too wide for the terminal
        out.width += max(0, -spare)
        widths = []
        for least, whole in rooms:
            more = max(min(whole - least, spare), 0)
            widths.append(least + more - GAP)
            spare -= more
        out.print(on_terminal(part, widths, framed=framed, head=head))


def parts(table: Table, width: int) -> list[Table]:
    """The columns in one or more tables, each of which begins with the table's first columns of words."""
    first = next((i for i, column in enumerate(table.columns) if not column.words), len(table.columns))
    groups = [[*range(first)]]
    for i in range(first, len(table.columns)):
        if len(groups[-1]) > first and sum(room(table, at)[0] for at in [*groups[-1], i]) > width:
            groups.append([*range(first)])
        groups[-1].append(i)
    return [
        Table(
            "" if number else table.title,
            [table.columns[i] for i in group],
            [[row[i] for i in group] for row in table.rows],
        )
        for number, group in enumerate(groups)
    ]


def room(table: Table, i: int) -> tuple[int, int]:
    """The least and the greatest width of column i in characters, with the gap beside it. Numbers do not
    break, and words and heads at spaces only.
    """
    from rich.cells import cell_len

    column = table.columns[i]
    lines = [line for row in table.rows for line in shown(text_of(row[i])).split("\n")]
    widest = max(map(cell_len, lines), default=0)
    whole = max(widest, cell_len(shown(column.head)))
    breaking = [column.head, *lines] if column.words else [column.head]
    word = max((cell_len(word) for line in breaking for word in line.split()), default=0)
    least = min(max(word, -(-whole // 2)), LONG_WORD) if column.words else max(word, widest)
    return min(whole, least) + GAP, whole + GAP


def on_terminal(table: Table, widths: Sequence[int], *, framed: bool, head: bool) -> "RichTable":
    """framed: draw lines around every column."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=Text(shown(table.title), "table.title") if table.title else None, title_justify="left",
        header_style="bold", show_header=head,
        box=box.HEAVY_HEAD if framed else box.SIMPLE_HEAD, pad_edge=framed,
    )  # fmt: skip
    for column, width in zip(table.columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column.words else "right"
        drawn.add_column(Text(shown(column.head)), justify=justify, overflow="fold", width=width)
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
