"""Texts with labels: SST-2 or any labelled CSV or TSV file, for each task."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mpx.data.encode import encode, encode_words, fills_left
from mpx.data.files import folder, need
from mpx.data.order import SPLIT_SEED, stratified_order
from mpx.data.splits import Data, Texts
from mpx.data.sst2_files import TEST, fetch_sst2
from mpx.data.tables import read_table
from mpx.data.targets import classes_of, from_cell, targets
from mpx.errors import UserError
from mpx.printing import how_many
from mpx.spec import NO_LABEL, Spec

Part = tuple[list[str], list[Any]]  # texts, labels as mpx.data.targets has them
Named = dict[str, tuple[str, Part]]  # split -> (the file it was read from, its rows)
FEW = 0.02  # share of a split's texts, below which those that are in the train split as well change no result; published sets have some


def load_sst2(cfg: SimpleNamespace) -> Data:
    """Train on GLUE's train phrases, validate on its dev sentences, test on the labelled test sentences. Raises UserError for files."""
    root = folder(cfg)
    where = root / "SST-2" if (root / "SST-2").is_dir() else root / "sst2"
    if cfg.download:
        fetch_sst2(where)
    files = {"train": need(where, "train.tsv"), "val": need(where, "dev.tsv"), "test": need(where, TEST, "test.tsv")}
    parts = {name: (str(path), read_table(path, "sentence", "label", literal=True)) for name, path in files.items()}
    return text_data(cfg, parts, "classification")


def load_csv(cfg: SimpleNamespace) -> Data:
    """Rows of `path`, `val_path` and `test_path`. If val_path or test_path is null, a fixed tenth of `path` takes its place.

    Raises UserError for files.
    """
    keys = {"train": "path", "val": "val_path", "test": "test_path"}
    parts = {name: read_rows(cfg, key) for name, key in keys.items() if getattr(cfg, key) is not None}
    return text_data(cfg, held_out(parts, cfg.task), cfg.task)


def read_rows(cfg: SimpleNamespace, key: str) -> tuple[str, Part]:
    """(path, rows) of the file that the setting `key` names. Raises UserError."""
    path = Path(str(getattr(cfg, key))).expanduser()
    literal = path.name.removesuffix(".gz").endswith(".tsv")
    parse = partial(from_cell, cfg.task)
    return str(path), read_table(path, cfg.text_column, cfg.label_column, literal, empty=cfg.task == "multilabel", parse=parse)


def held_out(parts: Named, task: str) -> Named:
    """All three splits. A fixed tenth of the train rows, stratified if they have classes, takes the place of a missing one.

    Raises UserError for too few rows.
    """
    source, (texts, labels) = parts["train"]
    absent, tenth = [name for name in ("val", "test") if name not in parts], len(texts) // 10
    if not absent:
        return parts
    if tenth == 0:
        raise UserError(
            f"data.path: {source} has {how_many(len(texts), 'row')}, too few to split: give 10 or more, or data.val_path and data.test_path"
        )
    place = {name: number for number, name in enumerate(sorted(set(labels)))} if task == "classification" else {}
    order = stratified_order(torch.tensor([place[label] if place else 0 for label in labels]), SPLIT_SEED).tolist()
    found = dict(parts)
    for name in absent:
        index, order = order[:tenth], order[tenth:]
        found[name] = (source, take(texts, labels, index))
    return found | {"train": (source, take(texts, labels, order))}


def take(texts: list[str], labels: list[Any], index) -> Part:
    return [texts[i] for i in index], [labels[i] for i in index]


def text_data(cfg: SimpleNamespace, parts: Named, task: str, order: Sequence[str] = ()) -> Data:
    """Texts as token ids, and labels as the task has them. order: of the classes. Raises UserError for labels and the tokenizer."""
    source, (_, labels) = parts["train"]
    classes = classes_of(task, labels, source, order)
    wanted = {name: targets(task, part[1], classes, where) for name, (where, part) in parts.items()}
    texts = {name: part[0] for name, (_, part) in parts.items()}
    if task == "tokens":
        ids, places, vocab_size, pad_id = encode_words(cfg, {name: words_of(parts[name]) for name in parts})
        wanted = {name: of_tokens(places[name], rows) for name, rows in wanted.items()}
        for name, labels in wanted.items():
            if not (labels != NO_LABEL).any():
                raise UserError(
                    f"data file {parts[name][0]}: none of the first data.seq_len={cfg.seq_len} tokens of any text of the {name} data has a "
                    "label. Label some, or raise data.seq_len."
                )
    else:
        ids, vocab_size, pad_id = encode(cfg, texts)
    padded = any(bool((part == pad_id).any()) for part in ids.values())
    left = any(fills_left(part, pad_id) for part in ids.values())
    names = () if task == "regression" else tuple(classes)
    padding = {"pad_id": pad_id, "padded": padded, "left": left}
    spec = Spec("text", (cfg.seq_len,), len(classes), vocab_size=vocab_size, **padding, task=task, names=names)
    _say_if_trained_on(parts)
    return Data(spec, *(Texts(ids[name], wanted[name]) for name in ("train", "val", "test")))


def _say_if_trained_on(parts: Named) -> None:
    """A model has the answers to texts that it was trained on by heart, and their accuracy looks like a result."""
    trained_on = set(map(str, parts["train"][1][0]))
    for name in ("val", "test"):
        source, (texts, _) = parts[name]
        if (shared := sum(str(text) in trained_on for text in texts)) >= FEW * len(texts):
            print(
                f"data file {source}: {shared:,} of {len(texts):,} {name} texts are train texts, too, so the {name} results are better "
                "than those of new texts. Remove the duplicates, or give other files.",
                file=sys.stderr, flush=True,
            )  # fmt: skip


def words_of(named: tuple[str, Part]) -> list[list[str]]:
    """The words of each text. Raises UserError for a text with another number of words than labels."""
    source, (texts, labels) = named
    found = [text if isinstance(text, list) else text.split() for text in texts]
    for words, names in zip(found, labels, strict=True):
        if len(words) != len(names):
            raise UserError(
                f"data file {source}: the text '{' '.join(words)[:60]}' has {how_many(len(words), 'word')} and "
                f"{how_many(len(names), 'label')}: data.task=tokens needs a label for each word, with spaces between them: correct it"
            )
    return found


def of_tokens(places: torch.Tensor, rows: list[list[int]]) -> torch.Tensor:
    """The class of each token that begins a word, NO_LABEL for all others: int64 [N, T]. places: the word that begins there, or -1."""
    found = torch.full(places.shape, NO_LABEL, dtype=torch.int64)
    for number, (place, row) in enumerate(zip(places, rows, strict=True)):
        begins = place >= 0
        found[number, begins] = torch.tensor(row, dtype=torch.int64)[place[begins].long()]
    return found
