"""Labelled texts from files: SST-2, which is downloaded if it is missing, or any CSV or TSV file."""

import csv
import io
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mpx.data.files import download, find, folder, need, read_text
from mpx.data.splits import Data, Texts
from mpx.data.targets import Named, Part, from_cell, held_out, text_data
from mpx.data.tokenizer import encode
from mpx.errors import UserError
from mpx.system.printing import how_many

csv.field_size_limit(2**31 - 1)  # Python's limit of 128 KiB would refuse long documents

# GLUE withholds the test labels, so the test set is the Stanford treebank's, rewritten in GLUE's form:
# `sentence<TAB>label`, plain brackets.
GLUE = "https://dl.fbaipublicfiles.com/glue/data/SST-2.zip"
TREEBANK = (
    "https://raw.githubusercontent.com/YJiangcm/SST-2-sentiment-analysis/ca3869fa59a56d316e73b41074abcb0226886de8"
    "/data/test.tsv"
)
TEST = "test_labelled_glue_style.tsv"
SHA256 = {
    "train.tsv": "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
    "dev.tsv": "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
    TEST: "2762deec34145e818e668ed8a74a59d903460f74db8b436cc940ed02965ab6b9",
}


def load_sst2(cfg: SimpleNamespace) -> Data:
    """Train on GLUE's train phrases, validate on its dev sentences, test on the labelled test sentences."""
    root = folder(cfg)
    where = root / "SST-2" if (root / "SST-2").is_dir() else root / "sst2"
    if cfg.download:
        _fetch_sst2(where)
    files = {
        "train": need(where, "train.tsv"),
        "val": need(where, "dev.tsv"),
        "test": need(where, TEST, "test.tsv"),
    }
    parts = {name: (str(path), read_table(path, "sentence", "label")) for name, path in files.items()}
    return text_data(cfg, parts, "classification")


def _fetch_sst2(where: Path) -> None:
    for name in ("train.tsv", "dev.tsv"):
        if find(where, name) is None:
            download(GLUE, where / name, SHA256[name], partial(member, name=f"SST-2/{name}"))
    if find(where, TEST, "test.tsv") is None:
        download(TREEBANK, where / TEST, SHA256[TEST], glue_style)


def member(content: bytes, name: str) -> bytes:
    """One file of a zip archive. Raises OSError if it is missing or the archive is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise OSError(f"the archive is damaged: {error}") from error


def glue_style(content: bytes) -> bytes:
    """Rewrite `label<TAB>sentence` lines with the treebank's escapes as GLUE has them: a header, `sentence
    <TAB>label`.
    """
    lines = ["sentence\tlabel"]
    # what is not text fails the check of the SHA-256
    for row in content.decode(errors="replace").splitlines():
        label, _, sentence = row.partition("\t")
        for old, new in (("\\/", "/"), ("-lrb-", "("), ("-rrb-", ")"), (" ### ", " ")):
            sentence = sentence.replace(old, new)
        lines.append(f"{' '.join(sentence.split())} \t{label}")
    return ("\n".join(lines) + "\n").encode()


def load_csv(cfg: SimpleNamespace) -> Data:
    """Rows of `path`, `val_path` and `test_path`. If one of the last two is null, a fixed tenth of `path`
    replaces it.
    """
    return text_data(cfg, csv_parts(cfg), cfg.task)


def unlabelled(cfg: SimpleNamespace, data: Data, path: Path) -> tuple[list[str], Texts]:
    """The texts of a CSV or TSV file, and they as a split whose labels mean nothing. Raises UserError."""
    texts, _ = read_table(path, cfg.text_column, None)
    ids, _, _ = encode(cfg, {"train": csv_parts(cfg)["train"][1][0], "predict": texts})
    return texts, Texts(ids["predict"], torch.zeros(len(texts), dtype=torch.int64))


def csv_parts(cfg: SimpleNamespace) -> Named:
    """The rows of each split, and the file that each comes from."""
    keys = {"train": "path", "val": "val_path", "test": "test_path"}
    parts = {name: _rows(cfg, key) for name, key in keys.items() if getattr(cfg, key) is not None}
    return held_out(parts, cfg.task)


def _rows(cfg: SimpleNamespace, key: str) -> tuple[str, Part]:
    """(path, rows) of the file that the setting `key` names. Raises UserError."""
    path = Path(str(getattr(cfg, key))).expanduser()
    parse = partial(from_cell, cfg.task)
    empty = cfg.task == "multilabel"
    return str(path), read_table(path, cfg.text_column, cfg.label_column, empty=empty, parse=parse)


def read_table(
    path: Path,
    text_column: str,
    label_column: str | None,
    *,
    empty: bool = False,
    parse: Callable[[str], Any] = str,
) -> Part:
    """(texts, labels) of a file whose first line names the columns. label_column: None for no labels.

    In a .tsv file tabs separate the columns and quotes are part of the text, as in GLUE; other files are CSV
    with quoting. empty: whether labels may be empty. parse: makes the label of a cell, or raises ValueError.
    Raises a UserError that names the line.
    """
    source = io.StringIO(read_text(path), newline="")
    rows = (
        csv.reader(source, csv.excel_tab, quoting=csv.QUOTE_NONE)
        if path.name.removesuffix(".gz").endswith(".tsv")
        else csv.reader(source, strict=True)
    )
    texts: list[str] = []
    labels: list[Any] = []
    try:
        header = next(rows, [])
        names = (text_column,) if label_column is None else (text_column, label_column)
        at = [_column(path, header, name) for name in names]
        for row in filter(None, rows):  # without blank lines
            text, *label = _checked(path, rows.line_num, row, header, at, empty=empty)
            texts.append(text)
            labels += map(parse, label)
    except UserError:
        raise
    except (csv.Error, ValueError) as error:
        raise UserError(f"data file {path}, line {rows.line_num}: {error}: correct that line") from error
    if not texts:
        raise UserError(f"data file {path} has no rows below its header: add some")
    return texts, labels


def _column(path: Path, header: list[str], name: str) -> int:
    """The index of a column. Raises a UserError that lists the columns of the file."""
    if header.count(name) != 1:
        raise UserError(
            f"data file {path}, line 1: {header.count(name) or 'no'} column '{name}' among "
            f"{', '.join(header) or 'no columns'}: correct the header (commas separate columns, in a .tsv "
            "file tabs), or for data=text_csv name them with data.text_column and data.label_column"
        )
    return header.index(name)


def _checked(
    path: Path, line: int, row: list[str], header: list[str], at: list[int], *, empty: bool
) -> list[str]:
    """The cells of one row. at: the indices of the text's column and the label's, if there are labels. Raises
    a UserError that names the line.
    """
    if len(row) != len(header):
        raise UserError(
            f"data file {path}, line {line}: {how_many(len(row), 'column')} where the header has "
            f"{len(header)} ({', '.join(header)}): correct that line; in CSV, quote texts that contain commas"
        )
    text, *label = cells = [row[i].strip() for i in at]
    if not text or not (all(label) or empty):
        name = header[at[1] if text else at[0]]
        raise UserError(f"data file {path}, line {line}: the {name} is empty: fill it or remove the line")
    return cells
