"""CSV files that a spreadsheet cannot run, and that a reader refuses where they are cut off.

A spreadsheet takes a cell that begins with one of = + - @ for a formula. Such text gets a leading apostrophe, which reading removes again.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

FORMULA = re.compile(r"'*[=+\-@\t\r]")  # text that begins with apostrophes gets one more, so that reading finds the original
NEUTRAL = re.compile(r"'+[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


class BadRow(ValueError):
    """A row that the writer cannot have written. The message begins with its line: `line 3: …`."""


def to_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and one line per row. Missing keys give empty fields."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_neutral, columns))
    writer.writerows([_neutral(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue()


def columns_of(text: str) -> list[str]:
    """The names in the header; [] for an empty text."""
    return list(map(_original, next(csv.reader(io.StringIO(text, newline="")), [])))


def rows_of(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, its fields by column) of each row. Raises BadRow for a row that is cut off, too long or not CSV, and for
    two columns of one name."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    try:
        for row in reader:
            if not columns:
                columns = list(map(_original, row))
                if twice := next((name for name in columns if name and columns.count(name) > 1), None):
                    raise BadRow(f"line 1: two columns are named {twice}")
            elif row:  # spreadsheets may end a file with an empty line
                yield reader.line_num, dict(zip(columns, _whole(row, columns, reader.line_num), strict=True))
    except csv.Error as error:
        raise BadRow(f"line {reader.line_num}: {error}") from error
    if text and not text.endswith(("\n", "\r")):
        raise BadRow(f"line {reader.line_num}: it is cut off, since no line break ends it")


def _whole(row: list[str], columns: Sequence[str], line: int) -> list[str]:
    if len(row) < len(columns):
        raise BadRow(f"line {line}: {columns[len(row)]} is missing")
    if len(row) > len(columns):
        raise BadRow(f"line {line}: it has {len(row)} fields, the header {len(columns)}")
    return list(map(_original, row))


def _neutral(value: Any) -> Any:
    dangerous = isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if dangerous else value


def _original(text: str) -> str:
    return text[1:] if NEUTRAL.match(text) else text
