"""Text classification on SST-2 or any labelled CSV or TSV file."""

from pathlib import Path

import torch

from mpx.data.encode import encode
from mpx.data.files import folder, need
from mpx.data.order import stratified_order
from mpx.data.splits import Data, Texts
from mpx.data.sst2_files import TEST, fetch_sst2
from mpx.data.tables import read_table
from mpx.errors import UserError, nearest
from mpx.spec import Spec

SPLIT_SEED = 0  # fixed, so that `seed=` never moves a sample from one split to another
Part = tuple[list[str], list[str]]  # texts, labels
Named = dict[str, tuple[str, Part]]  # split -> (the file it was read from, its rows)


def load_sst2(cfg) -> Data:
    """Train on GLUE's train phrases, validate on its dev sentences, test on the labelled test sentences. Raises UserError for files."""
    root = folder(cfg)
    where = root / "SST-2" if (root / "SST-2").is_dir() else root / "sst2"
    if cfg.download:
        fetch_sst2(where)
    files = {"train": need(where, "train.tsv"), "val": need(where, "dev.tsv"), "test": need(where, TEST, "test.tsv")}
    return text_data(cfg, {name: (str(path), read_table(path, "sentence", "label", literal=True)) for name, path in files.items()})


def load_csv(cfg) -> Data:
    """Rows of `path`, `val_path` and `test_path`; a fixed stratified tenth of `path` stands in for each of the latter that is null.

    Raises UserError for files.
    """
    parts = {"train": read_rows(cfg, "path")}
    absent = [name for name in ("val", "test") if getattr(cfg, f"{name}_path") is None]
    for name in {"val", "test"} - set(absent):
        parts[name] = read_rows(cfg, f"{name}_path")
    source, (texts, labels) = parts["train"]
    tenth = len(texts) // 10
    if absent and tenth == 0:
        raise UserError(
            f"data.path: {source} has {len(texts)} rows, too few to split: give 10 or more, or data.val_path and data.test_path"
        )
    order = stratified_order(numbers(source, labels, sorted(set(labels))), SPLIT_SEED).tolist()
    for name in absent:
        held_out, order = order[:tenth], order[tenth:]
        parts[name] = (source, take(texts, labels, held_out))
    parts["train"] = (source, take(texts, labels, order if absent else range(len(texts))))
    return text_data(cfg, parts)


def read_rows(cfg, key: str) -> tuple[str, Part]:
    """(path, rows) of the file that the setting `key` names. Raises UserError."""
    path = Path(str(getattr(cfg, key))).expanduser()
    literal = path.name.removesuffix(".gz").endswith(".tsv")
    return str(path), read_table(path, cfg.text_column, cfg.label_column, literal)


def take(texts: list[str], labels: list[str], index) -> Part:
    return [texts[i] for i in index], [labels[i] for i in index]


def numbers(source: str, labels: list[str], classes: list[str]) -> torch.Tensor:
    """Labels as indices into `classes`, int64 [N]. Raises UserError for a label that the train split does not have."""
    place = {name: number for number, name in enumerate(classes)}
    for label in labels:
        if label not in place:
            raise UserError(
                f"data file {source} has the label '{label}', which no train row has: use one of {', '.join(classes[:10])}."
                f"{nearest(label, classes)}"
            )
    return torch.tensor([place[label] for label in labels])


def text_data(cfg, parts: Named) -> Data:
    """Texts as token ids; labels as numbers of the train split's classes, sorted. Raises UserError for labels and the tokenizer."""
    source, (_, labels) = parts["train"]
    classes = sorted(set(labels))
    if len(classes) < 2:
        raise UserError(f"data file {source} has one class only ({classes[0]}): two or more are needed, check data.label_column")
    targets = {name: numbers(part[0], part[1][1], classes) for name, part in parts.items()}
    ids, vocab_size, pad_id = encode(cfg, {name: part[1][0] for name, part in parts.items()})
    padded = any(bool((part == pad_id).any()) for part in ids.values())
    spec = Spec("text", (cfg.seq_len,), len(classes), vocab_size=vocab_size, pad_id=pad_id, padded=padded)
    return Data(spec, *(Texts(ids[name], targets[name]) for name in ("train", "val", "test")), class_names=tuple(classes))
