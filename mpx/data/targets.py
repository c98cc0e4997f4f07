"""Texts with labels as a task has them: checked, split, and as tensors.

| task           | a label                | in CSV                                                                |
|----------------|------------------------|-----------------------------------------------------------------------|
| classification | a class's name         | as it is                                                              |
| regression     | one or more numbers    | numbers with spaces between them                                      |
| multilabel     | names of labels        | names with ; between them, or nothing                                 |
| tokens         | a name for each word   | names with spaces between them, -100 for none; so are the text's words |
"""  # noqa: E501

import math
import sys
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mpx.data.order import SPLIT_SEED, stratified_order
from mpx.data.spec import NO_LABEL, Spec
from mpx.data.splits import Data, Texts
from mpx.data.tokenizer import encode, encode_words
from mpx.errors import UserError, nearest
from mpx.system.printing import how_many

# texts (for tokens also lists of words), and labels as the table above has them
Part = tuple[list[Any], list[Any]]
Named = dict[str, tuple[str, Part]]  # split -> (the file it was read from, its rows)
# share of a split's texts that may be train texts, too, without changing a result; published sets have some
FEW = 0.02


def from_cell(task: str, cell: str) -> Any:
    """The label that a table's cell holds. Raises ValueError for a cell without finite numbers where they are
    needed.
    """
    if task == "regression":
        return finite(cell.split())
    if task == "multilabel":
        return [name.strip() for name in cell.split(";") if name.strip()]
    return cell.split() if task == "tokens" else cell


def finite(parts: Iterable[Any]) -> list[float]:
    """The parts of a label as numbers. Raises ValueError for a part that is not a finite number."""
    for part in parts:
        if _number(part) is None:
            raise ValueError(f"the label {part!r} is not a finite number, and data.task=regression needs one")
    return [float(part) for part in parts]


def held_out(parts: Named, task: str) -> Named:
    """All three splits. A fixed tenth of the train rows, stratified if they have classes, takes the place of
    a missing one.

    Raises UserError for too few rows.
    """
    source, (texts, labels) = parts["train"]
    absent, tenth = [name for name in ("val", "test") if name not in parts], len(texts) // 10
    if not absent:
        return parts
    if tenth == 0:
        raise UserError(
            f"data.path: {source} has {how_many(len(texts), 'row')}, too few to split: give 10 or more, or "
            "data.val_path and data.test_path"
        )
    place = (
        {name: number for number, name in enumerate(sorted(set(labels)))} if task == "classification" else {}
    )
    order = stratified_order(
        torch.tensor([place[label] if place else 0 for label in labels]), SPLIT_SEED
    ).tolist()
    whole = dict(parts)
    for name in absent:
        index, order = order[:tenth], order[tenth:]
        whole[name] = (source, _take(texts, labels, index))
    return whole | {"train": (source, _take(texts, labels, order))}


def _take(texts: list[Any], labels: list[Any], index: list[int]) -> Part:
    return [texts[i] for i in index], [labels[i] for i in index]


def text_data(cfg: SimpleNamespace, parts: Named, task: str, order: Sequence[str] = ()) -> Data:
    """Texts as token ids, and labels as the task has them. order: of the classes. Raises UserError for wrong
    labels.
    """
    source, (_, labels) = parts["train"]
    classes = classes_of(task, labels, source, order)
    wanted = {name: targets(task, part[1], classes, where) for name, (where, part) in parts.items()}
    if task == "tokens":
        ids, places, vocab_size, pad_id = encode_words(cfg, {name: _words(*parts[name]) for name in parts})
        wanted = {name: _of_tokens(places[name], rows) for name, rows in wanted.items()}
    else:
        ids, vocab_size, pad_id = encode(cfg, {name: part[0] for name, (_, part) in parts.items()})
    padded = any(bool((part == pad_id).any()) for part in ids.values())
    names = () if task == "regression" else tuple(classes)
    spec = Spec("text", (cfg.seq_len,), len(classes), vocab_size, pad_id, padded, task, names)
    _warn_of_train_texts(parts)
    return Data(spec, *(Texts(ids[name], wanted[name]) for name in ("train", "val", "test")))


def _warn_of_train_texts(parts: Named) -> None:
    """A model knows the answers to texts that it was trained on by heart, and their accuracy looks like a
    result.
    """
    train_texts = set(map(str, parts["train"][1][0]))
    for name in ("val", "test"):
        source, (texts, _) = parts[name]
        if (shared := sum(str(text) in train_texts for text in texts)) >= FEW * len(texts):
            print(
                f"data file {source}: {shared:,} of {len(texts):,} {name} texts are train texts, too, so "
                f"the {name} results "
                "are better than those of new texts. Remove the duplicates, or give other files.",
                file=sys.stderr,
                flush=True,
            )


def _words(source: str, part: Part) -> list[list[str]]:
    """The words of each text. Raises UserError for a text with another number of words than labels."""
    texts, labels = part
    split = [text if isinstance(text, list) else text.split() for text in texts]
    for words, names in zip(split, labels, strict=True):
        if len(words) != len(names):
            raise UserError(
                f"data file {source}: the text '{' '.join(words)[:60]}' has {how_many(len(words), 'word')} "
                f"and {how_many(len(names), 'label')}: data.task=tokens needs a label for each word, with "
                "spaces between them: correct it"
            )
    return split


def _of_tokens(places: Tensor, rows: list[list[int]]) -> Tensor:
    """The class of each token that begins a word, else NO_LABEL: int64 [N, T]. places: the word's number, or
    -1.
    """
    labels = torch.full(places.shape, NO_LABEL, dtype=torch.int64)
    for number, (place, row) in enumerate(zip(places, rows, strict=True)):
        begins = place >= 0
        labels[number, begins] = torch.tensor(row, dtype=torch.int64)[place[begins].long()]
    return labels


def classes_of(task: str, labels: Sequence[Any], source: str, order: Sequence[str] = ()) -> list[str]:
    """The names of all classes in the train split, in the order of their numbers; for regression one for each
    number.

    order: that of the data set, if it has one; otherwise numbers are in order, and other names sorted. Raises
    UserError for fewer than needed.
    """
    if task == "regression":
        return [str(place) for place in range(len(labels[0]))]
    names = (
        set(labels)
        if task == "classification"
        else {name for row in labels for name in row} - _without(task).keys()
    )
    numbered = all(_number(name) is not None for name in names)  # 10 comes after 9
    by_name = sorted(names, key=lambda name: (_number(name), name) if numbered else name)
    classes = [name for name in order if name in names] or by_name
    if len(classes) < (1 if task == "multilabel" else 2):
        what = f"one class only ({classes[0]})" if classes else "no label"
        raise UserError(f"data file {source} has {what}: two or more are needed, check data.label_column")
    return classes


def _without(task: str) -> dict[str, int]:
    """What a word without a label has in its place."""
    return {str(NO_LABEL): NO_LABEL} if task == "tokens" else {}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def targets(task: str, labels: Sequence[Any], classes: Sequence[str], source: str) -> Any:
    """int64 [N], float32 [N, classes], or for tokens a list of class numbers for each text.

    Raises UserError for a label without a class.
    """
    if task == "regression":
        return _values(labels, len(classes), source)
    place = {name: number for number, name in enumerate(classes)} | _without(task)
    if task == "classification":
        return torch.tensor(_numbers(labels, place, source))
    rows = [_numbers(row, place, source) for row in labels]
    if task == "tokens":
        return rows
    hot = torch.zeros(len(rows), len(classes))
    for number, row in enumerate(rows):
        hot[number, row] = 1.0
    return hot


def _values(labels: Sequence[Sequence[float]], count: int, source: str) -> Tensor:
    if (row := next((row for row in labels if len(row) != count), None)) is not None:
        raise UserError(
            f"data file {source} has the label {row}, and the first train row has "
            f"{how_many(count, 'number')}: give all as many"
        )
    return torch.tensor(labels, dtype=torch.float32)


def _numbers(labels: Iterable[str], place: dict[str, int], source: str) -> list[int]:
    numbers = []
    for label in labels:
        if label not in place:
            raise UserError(
                f"data file {source} has the label '{label}', which no train row has: use one of "
                f"{', '.join(list(place)[:10])}.{nearest(label, place)}"
            )
        numbers.append(place[label])
    return numbers
