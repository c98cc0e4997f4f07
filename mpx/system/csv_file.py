"""CSV files, which a reader refuses where they are cut off."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_FIELD = 2**24  # characters


class BadRow(ValueError):
    """A row that the writer cannot have written. The message begins with its line: `line 3: …`."""


def to_text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and one line per row. Missing keys give empty fields."""
    text, names = io.StringIO(), list(columns)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row.get(name, "") for name in names] for row in rows)
    return text.getvalue()


def rows_of(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, its fields by column) of each row. Raises BadRow for a row that is cut off, too long or not
    CSV.
    """
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = next(reader, [])
        for row in filter(None, reader):  # spreadsheets may end a file with an empty line
            if len(row) != len(columns):
                raise BadRow(f"line {reader.line_num}: it has {len(row)} fields, the header {len(columns)}")
            yield reader.line_num, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise BadRow(f"line {reader.line_num}: {error}") from error
    if text and not text.endswith(("\n", "\r")):
        raise BadRow(f"line {reader.line_num}: it is cut off, since no line break ends it")
