"""Write a file, or a folder of files, whole or not at all; say it in one line where output_dir cannot be
written; and CSV files, which a reader refuses where they are cut off.
"""

import csv
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mpx.errors import UserError

MAX_FIELD = 2**24  # characters


def write_whole(path: Path, content: str | bytes) -> None:
    """Write beside `path`, then rename, so that no reader sees half a file and a full disk or Ctrl-C leaves
    the old one. Text is UTF-8.
    """
    beside = _beside(path)
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the name that its reader knows
    finally:
        beside.unlink(missing_ok=True)


def try_writing(folder: Path) -> None:
    """Raise the OSError with which writing in `folder` would fail: before hours of work, not after them."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


@contextmanager
def below_output_dir(folder: Path) -> Iterator[None]:
    """Raise UserError where the block cannot write into `folder`, which lies below output_dir."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise UserError(
            f"output_dir: cannot write {where} ({error.strerror}). Choose another folder with output_dir=DIR."
        ) from error


def own_folder(path: Path) -> Path:
    """Make the folder if it is not there. A link in its place is removed, since what is written there would
    change a folder elsewhere.
    """
    if path.is_symlink():
        path.unlink()
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `path` and all that is in it when the block ends. After an
    error, `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside, old = _beside(path), _beside(path)
    try:
        beside.mkdir()
        yield beside
        with suppress(FileNotFoundError):
            os.rename(path, old)
        try:
            os.rename(beside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.rename(old, path)
            raise
    finally:
        for folder in (beside, old):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            path.parent.rmdir()  # where nothing came into it


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


def _beside(path: Path) -> Path:
    """Without "tfevents" in its name: TensorBoard reads every file that has it."""
    return path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.part")
