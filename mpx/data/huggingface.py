"""Texts of a Hugging Face data set: a folder saved by `datasets.save_to_disk`, or Parquet, Arrow or JSONL files.

Nothing is fetched, and no code of a data set runs. The splits are called train, validation (or val, dev) and test. If validation or test is
missing, a fixed tenth of the train rows takes its place.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpx.data.splits import Data
from mpx.data.targets import from_cell, numbers
from mpx.data.text_sets import Part, held_out, text_data
from mpx.errors import UserError, first_line, nearest

SPLITS = {"train": "train", "validation": "val", "val": "val", "valid": "val", "dev": "val", "test": "test"}  # name -> mpx's name


def load(cfg: SimpleNamespace) -> Data:
    """Raises UserError for a folder or files that cannot be used."""
    import datasets
    import pyarrow

    datasets.disable_progress_bars()
    path = Path(str(cfg.path)).expanduser()
    try:
        found = _saved(path) if path.is_dir() and _is_saved(path) else _files(path)
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, pyarrow.ArrowException) as error:  # what damaged files lead to
        raise UserError(f"data.path={path} cannot be read as a data set ({first_line(error)[:200]}): save or download it again") from error
    if "train" not in found:
        raise UserError(f"data.path={path} has no split called train: it has {', '.join(found) or 'none'}. Name one so.")
    used = [name for name in ("train", "val", "test") if name in found]
    if empty := [name for name in used if len(found[name]) == 0]:
        raise UserError(f"data.path={path}: its split {empty[0]} has no rows. Add some, or remove the split.")
    parts = {name: (f"{path} ({name})", rows(cfg, found[name], path)) for name in used}
    known = _class_label(found["train"].features[cfg.label_column])
    _say_unused(path, [name for name in found if name not in used], [name for name in ("val", "test") if name not in found])
    return text_data(cfg, held_out(parts, cfg.task), cfg.task, order=() if known is None else known.names)


def _is_saved(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def _saved(path: Path) -> dict[str, Any]:
    import datasets

    whole = datasets.load_from_disk(str(path)).with_format(None)  # a folder keeps the format, such as torch, in which its rows were read
    if not isinstance(whole, datasets.DatasetDict):
        return {"train": whole}
    if len(same := [name for name in whole if SPLITS.get(name) == "val"]) > 1:
        raise UserError(f"data.path={path} has splits {' and '.join(same)}, which are both for validation: remove or rename all but one")
    return {SPLITS.get(name, name): part for name, part in whole.items()}


def _say_unused(path: Path, unused: Sequence[str], absent: Sequence[str]) -> None:
    """A set that has test rows under another name would be tested on train rows that are held out, and nobody would know."""
    if unused and absent:
        print(
            f"data.path={path}: {', '.join(unused)} is not used, and a tenth of the train rows takes the place of {' and '.join(absent)}. "
            "Splits, and the files of one, are called train, validation and test.",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _files(path: Path) -> dict[str, Any]:
    """The splits of one file, or of a folder's files, which begin with the names of the splits: train-00000-of-00002.parquet.

    Files of other names, such as the publisher's dataset_infos.json, are not read.
    """
    there = sorted(file for file in (path, *path.rglob("*")) if file.suffix in READERS and file.is_file())
    if not there:
        raise UserError(
            f"data.path={path} holds no data set: give a folder saved by save_to_disk, or with files such as train.parquet "
            f"({', '.join(READERS)})"
        )
    if len(there) == 1 and (path.is_file() or _first(there[0]) not in SPLITS):
        return {"train": _read(there)}
    by_name: dict[str, list[Path]] = {}
    for file in there:
        first = _first(file)
        known = (SPLITS[name] for name in (first, file.parent.name) if name in SPLITS)
        by_name.setdefault(next(known, first), []).append(file)
    for name, files in by_name.items():
        if name in SPLITS.values():
            _check_one_copy(path, name, files)
    return {name: _read(files) if name in SPLITS.values() else None for name, files in by_name.items()}


def _check_one_copy(path: Path, name: str, files: Sequence[Path]) -> None:
    """Raise UserError for files that are not the parts of one split: rows that are there twice would count twice."""
    folders = sorted({str(file.parent) for file in files})  # one for each language, for example
    if len(folders) > 1:
        raise UserError(
            f"data.path={path}: its split {name} lies in {len(folders)} folders, such as {folders[0]}: give the folder of one data set"
        )
    copies = sorted({f"{word}…{file.suffix}" if (word := _first(file)) in SPLITS else f"…{file.suffix}" for file in files})
    if len(copies) > 1:
        raise UserError(
            f"data.path={path}: its split {name} is there as {' and as '.join(copies)}: keep the files of one, move the others away"
        )


def _first(file: Path) -> str:
    """The first word of the file's name, which may be that of a split."""
    return re.split("[-_.]", file.stem)[0]


def _read(files: Sequence[Path]) -> Any:
    """One split of several files, in order. Raises ValueError for files whose columns, or names of classes, differ."""
    from datasets import Dataset, concatenate_datasets

    return concatenate_datasets([Dataset(READERS[file.suffix](file)) for file in files])


def _parquet(file: Path):
    import pyarrow.parquet

    return pyarrow.parquet.read_table(file)


def _arrow(file: Path):
    """A stream, as datasets writes it, or a file with an index, as other programs do."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(file.read_bytes()).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_file(file.read_bytes()).read_all()


def _json_lines(file: Path):
    import pyarrow.json

    return pyarrow.json.read_json(file)


READERS: dict[str, Callable] = {".parquet": _parquet, ".arrow": _arrow, ".jsonl": _json_lines, ".json": _json_lines}


def rows(cfg: SimpleNamespace, split: Any, path: Path) -> Part:
    """Texts and labels of one split. Raises UserError for missing columns, and for values of other kinds than the task has."""
    for key in ("text_column", "label_column"):
        name = getattr(cfg, key)
        if name not in split.column_names:
            raise UserError(
                f"data.{key}={name} is not a column of {path}: it has {', '.join(split.column_names)}.{nearest(name, split.column_names)} "
                f"Give data.{key}=COLUMN."
            )
    texts, labels = list(split[cfg.text_column]), list(split[cfg.label_column])
    known = _class_label(split.features[cfg.label_column])
    made = []
    for number, (text, label) in enumerate(zip(texts, labels, strict=True), 1):
        words = cfg.task == "tokens" and isinstance(text, list) and all(isinstance(word, str) for word in text)
        if not (words or (isinstance(text, str) and text.strip())):
            raise UserError(f"data.text_column={cfg.text_column}: row {number} of {path} is {str(text)[:60]!r}, where a text is needed")
        made.append(_label(cfg.task, label, known, f"data.label_column={cfg.label_column}: row {number} of {path}"))
    return texts, made


def _class_label(feature: Any) -> Any:
    """The ClassLabel of a column or of the members of its lists, which numbers and names the classes; None for another type."""
    inner = getattr(feature, "feature", feature)
    return inner if hasattr(inner, "int2str") else None


def _label(task: str, label: Any, known: Any, where: str) -> Any:
    """A label as mpx.data.targets has it. known: what `_class_label` returns. Raises UserError."""
    several = isinstance(label, list)
    parts = label if several else [label]
    absent = any(part is None or part != part or (part == "" and task != "multilabel") for part in parts)  # NaN: of a column of floats
    nested = any(isinstance(part, list | dict) for part in parts)
    if absent or nested or (task != "regression" and several != (task != "classification") and not isinstance(label, str)):
        needs = {"regression": "numbers", "multilabel": "a list of labels", "tokens": "a list of a label for each word"}
        raise UserError(f"{where} is {str(label)[:60]!r}; data.task={task} needs {needs.get(task, 'one label')}")
    if task == "regression":
        try:
            return numbers(parts)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
    if isinstance(label, str):
        return from_cell(task, label)
    if task == "multilabel" and len(set(parts)) < len(parts) and not isinstance(parts[0], str):
        raise UserError(
            f"{where} is {str(label)[:60]!r}; data.task=multilabel needs a list of the labels that the text has, and not a zero or one for "
            "each label"
        )
    try:
        found = [known.int2str(part) if known is not None and isinstance(part, int) else str(part) for part in parts]
    except ValueError as error:  # of ClassLabel; unlabelled rows have -1
        raise UserError(f"{where} is {str(label)[:60]!r}, which is none of the column's classes") from error
    return found if several else found[0]
