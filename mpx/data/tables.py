"""Labelled texts from CSV and TSV files. Every error names the line."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpx.data.files import read_text
from mpx.errors import UserError
from mpx.printing import how_many

csv.field_size_limit(2**31 - 1)  # Python's limit of 128 KiB would refuse long documents


def read_table(
    path: Path, text_column: str, label_column: str, literal: bool, *, empty: bool = False, parse: Callable[[str], Any] = str,
) -> tuple[list[str], list[Any]]:  # fmt: skip
    """(texts, labels) of a file whose first line names the columns.

    literal: tabs separate the columns and quotes are part of the text, as in GLUE; otherwise CSV with quoting.
    empty: a label may be so. parse: makes the label of a cell, or raises ValueError.
    Raises UserError for a missing column, a row with another number of columns, an empty text or label, and a label that `parse` refuses.
    """
    source = io.StringIO(read_text(path), newline="")
    how = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if literal else {"strict": True}
    rows = csv.reader(source, **how)
    try:
        header = next(rows, [])
        at = [column(path, header, text_column), column(path, header, label_column)]
        texts, labels = [], []
        for row in rows:
            if row:  # blank lines are skipped
                text, label = checked(path, rows.line_num, row, header, at, empty=empty)
                texts.append(text)
                labels.append(parse(label))
    except UserError:
        raise
    except (csv.Error, ValueError) as error:
        raise UserError(f"data file {path}, line {rows.line_num}: {error}: correct that line") from error
    if not texts:
        raise UserError(f"data file {path} has no rows below its header: add some")
    return texts, labels


def column(path: Path, header: list[str], name: str) -> int:
    """The index of a column. Raises a UserError that lists the columns of the file."""
    if name not in header:
        raise UserError(
            f"data file {path}, line 1: there is no column '{name}' among {', '.join(header) or 'no columns'}: "
            "correct the header, or for data=text_csv name the columns with data.text_column and data.label_column"
        )
    if header.count(name) > 1:
        raise UserError(f"data file {path}, line 1: {header.count(name)} columns are called '{name}': rename all but one")
    return header.index(name)


def checked(path: Path, line: int, row: list[str], header: list[str], at: list[int], *, empty: bool) -> tuple[str, str]:
    """(text, label) of one row. at: the indices of their columns. Raises a UserError that names the line."""
    if len(row) != len(header):
        raise UserError(
            f"data file {path}, line {line}: {how_many(len(row), 'column')} where the header has {len(header)} ({', '.join(header)}): "
            "correct that line; in CSV, quote texts that contain commas"
        )
    text, label = (row[i].strip() for i in at)
    if not text or not (label or empty):
        name = header[at[1] if text else at[0]]
        raise UserError(f"data file {path}, line {line}: the {name} is empty: fill it or remove the line")
    return text, label
