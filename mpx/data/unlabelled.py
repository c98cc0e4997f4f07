"""A user's samples without labels, made as the run that answers them made its test set."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mpx.data.encode import encode
from mpx.data.splits import Data, Texts
from mpx.data.text_sets import csv_parts, is_tsv, read_table
from mpx.errors import UserError
from mpx.settings.data import family

TASKS = ("classification", "regression")


def unlabelled(settings: Mapping[str, Any], data: Data, given: str) -> tuple[list[str], Any]:
    """(what each sample is called: its path, or its text; the samples as a split whose labels mean nothing).

    settings: of the run's data set `data`. given: a folder of images, or a CSV or TSV file with the column of
    the texts. Raises UserError if it does not fit.
    """
    kind, path = family(settings), Path(given).expanduser()
    if kind not in ("image_folder", "text_csv") or data.spec.task not in TASKS:
        raise UserError(
            f"predict={given} needs a run of data=image_folder or data=text_csv with data.task="
            f"{' or '.join(TASKS)}; this one has data={kind}, data.task={data.spec.task}. Leave it out."
        )
    if kind == "image_folder":
        paths = _images(path)
        return paths, replace(data.test, paths=tuple(paths), labels=_no_labels(len(paths)))
    cfg = SimpleNamespace(**settings)
    texts, _ = read_table(path, cfg.text_column, None, is_tsv(path))
    ids, _, _ = encode(cfg, {"train": csv_parts(cfg)["train"][1][0], "predict": texts})
    return texts, Texts(ids["predict"], _no_labels(len(texts)))


def _no_labels(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def _images(folder: Path) -> list[str]:
    """The image files below a folder, sorted. Raises UserError if there is none, or one cannot be read."""
    from torchvision.datasets.folder import is_image_file

    from mpx.data.image_folder import check_images

    paths = sorted(str(path) for path in folder.rglob("*") if is_image_file(path.name))
    if not paths:
        raise UserError(f"predict={folder} is no folder with images (.jpg, .png and others). Give one.")
    check_images(paths)
    return paths
