"""Texts of a Hugging Face data set on disk, as the datasets library reads it. Nothing is fetched.

Either a folder saved by `save_to_disk`, or Parquet, Arrow or JSONL files, whose names say their split. The
splits are called train, validation and test. A fixed tenth of the train rows takes the place of a missing one
of the last two.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpx.data.splits import Data
from mpx.data.targets import Part, finite, from_cell, held_out, text_data
from mpx.errors import UserError, first_line, nearest

SPLITS = {"train": "train", "validation": "val", "test": "test"}  # the library's name -> mpx's
READERS = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json", ".json": "json"}  # of a single file
NEEDS = {
    "classification": "one label",
    "regression": "numbers",
    "multilabel": "a list of the labels that the text has, and not a zero or one for each label",
    "tokens": "a list of a label for each word",
}


def load(cfg: SimpleNamespace) -> Data:
    """Raises UserError for a folder or files that cannot be used."""
    path = Path(str(cfg.path)).expanduser()
    try:
        splits = _read(path, Path(cfg.cache).expanduser() / "datasets")
    except Exception as error:  # damaged files raise nearly anything
        raise UserError(
            f"data.path={path} cannot be read as a data set ({first_line(error)[:200]}): give a folder saved "
            f"by save_to_disk, or with files such as train.parquet ({', '.join(READERS)})"
        ) from error
    used = {mine: splits[name] for name, mine in SPLITS.items() if name in splits}
    if "train" not in used or not all(len(split) for split in used.values()):
        counts = ", ".join(f"{name} ({len(split)} rows)" for name, split in splits.items())
        raise UserError(
            f"data.path={path} needs a split called train, and none that is empty: it has {counts}."
        )
    if len(splits) > len(used) < len(SPLITS):  # else test rows under another name would be left out unnoticed
        unused = ", ".join(name for name in splits if name not in SPLITS)
        print(
            f"data.path={path}: {unused} is not used, and a tenth of the train rows takes the place of each "
            f"split that is missing. Splits, and the files of one, are called {', '.join(SPLITS)}.",
            file=sys.stderr,
            flush=True,
        )
    parts = {name: (f"{path} ({name})", rows(cfg, split, path)) for name, split in used.items()}
    names = getattr(_class_label(used["train"].features[cfg.label_column]), "names", ())
    return text_data(cfg, held_out(parts, cfg.task), cfg.task, order=names)


def _read(path: Path, cache: Path) -> dict[str, Any]:
    import datasets

    datasets.disable_progress_bars()
    if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
        saved = datasets.load_from_disk(str(path)).with_format(None)  # a folder keeps a format, such as torch
        return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    if path.is_file():
        return dict(datasets.load_dataset(READERS[path.suffix], data_files=str(path), cache_dir=str(cache)))
    return dict(datasets.load_dataset(str(path), cache_dir=str(cache)))


def rows(cfg: SimpleNamespace, split: Any, path: Path) -> Part:
    """Texts and labels of one split. Raises UserError for missing columns, and for values that the task
    cannot have.
    """
    for key in ("text_column", "label_column"):
        name = getattr(cfg, key)
        if name not in split.column_names:
            raise UserError(
                f"data.{key}={name} is not a column of {path}: it has {', '.join(split.column_names)}."
                f"{nearest(name, split.column_names)} Give data.{key}=COLUMN."
            )
    texts, labels = list(split[cfg.text_column]), list(split[cfg.label_column])
    known = _class_label(split.features[cfg.label_column])
    made = []
    for number, (text, label) in enumerate(zip(texts, labels, strict=True), 1):
        words = (
            cfg.task == "tokens" and isinstance(text, list) and all(isinstance(word, str) for word in text)
        )
        if not (words or (isinstance(text, str) and text.strip())):
            raise UserError(
                f"data.text_column={cfg.text_column}: row {number} of {path} is {str(text)[:60]!r}, where "
                "a text is needed"
            )
        try:
            made.append(_label(cfg.task, label, known))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"data.label_column={cfg.label_column}: row {number} of {path} is {str(label)[:60]!r}; "
                f"data.task={cfg.task} needs {NEEDS[cfg.task]}"
            ) from error
    return texts, made


def _class_label(feature: Any) -> Any:
    """The ClassLabel of a column or of the members of its lists, which numbers and names the classes; else
    None.
    """
    inner = getattr(feature, "feature", feature)
    return inner if hasattr(inner, "int2str") else None


def _label(task: str, label: Any, known: Any) -> Any:
    """A label as mpx.data.targets has it. known: the column's ClassLabel. Raises ValueError or TypeError."""
    if isinstance(label, str) and label:
        return from_cell(task, label)
    parts = label if isinstance(label, list) else [label]
    if task == "regression":
        return finite(parts)
    if isinstance(label, list) != (task != "classification"):
        raise ValueError
    # NaN is not NaN
    if any(not isinstance(part, str | int | float) or part != part or part == "" for part in parts):
        raise ValueError
    if task == "multilabel" and len(set(parts)) < len(parts):
        raise ValueError
    names = [
        known.int2str(part) if known is not None and isinstance(part, int) else str(part) for part in parts
    ]
    return names[0] if task == "classification" else names
