"""CSV files that a spreadsheet cannot run, and that a reader refuses where they are cut off.

A spreadsheet takes a cell that begins with one of = + - @ for a formula. Such text gets a leading apostrophe,
which reading removes again.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# text that begins with apostrophes gets one more, so that reading finds the original
FORMULA = re.compile(r"'*[=+\-@\t\r]")
NEUTRAL = re.compile(r"'+[=+\-@\t\r]")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
MAX_FIELD = 2**24  # characters


class BadRow(ValueError):
    """A row that the writer cannot have written. The message begins with its line: `line 3: …`."""


def to_text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and one line per row. Missing keys give empty fields."""
    text, names = io.StringIO(), list(columns)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_neutral, names))
    writer.writerows([_neutral(row.get(name, "")) for name in names] for row in rows)
    return text.getvalue()


def rows_of(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, its fields by column) of each row. Raises BadRow for a row that is cut off, too long or not
    CSV.
    """
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [_original(name) for name in next(reader, [])]
        for row in filter(None, reader):  # spreadsheets may end a file with an empty line
            if len(row) != len(columns):
                raise BadRow(f"line {reader.line_num}: it has {len(row)} fields, the header {len(columns)}")
            yield reader.line_num, dict(zip(columns, map(_original, row), strict=True))
    except csv.Error as error:
        raise BadRow(f"line {reader.line_num}: {error}") from error
    if text and not text.endswith(("\n", "\r")):
        raise BadRow(f"line {reader.line_num}: it is cut off, since no line break ends it")


def _neutral(value: Any) -> Any:
    dangerous = isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    return f"'{value}" if dangerous else value


def _original(text: str) -> str:
    return text[1:] if NEUTRAL.match(text) else text
