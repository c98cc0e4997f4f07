"""Labels as a task has them: read from a table's cells, checked, and as tensors.

| task           | a label                | in CSV                                                |
|----------------|------------------------|-------------------------------------------------------|
| classification | a class's name         | as it is                                              |
| regression     | one or more numbers    | numbers with spaces between them                      |
| multilabel     | names of labels        | names with ; between them, or nothing                 |
| tokens         | a name for each word   | names with spaces between them, -100 for none; so are the text's words |
"""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mpx.errors import UserError, nearest
from mpx.printing import how_many
from mpx.spec import NO_LABEL

MOST_NUMBERS = 20  # if labels are more different whole numbers than this, they are probably quantities and no classes


def from_cell(task: str, cell: str) -> Any:
    """The label that a table's cell holds. Raises ValueError for a cell without finite numbers where the task needs them."""
    if task == "regression":
        return numbers(cell.split())
    if task == "multilabel":
        return [name.strip() for name in cell.split(";") if name.strip()]
    return cell.split() if task == "tokens" else cell


def numbers(parts: Iterable[Any]) -> list[float]:
    """Raises ValueError for a part that is not a finite number."""
    for part in parts:
        if _number(part) is None:
            raise ValueError(f"the label {part!r} is not a finite number, and data.task=regression needs one")
    return [float(part) for part in parts]


def classes_of(task: str, labels: Sequence[Any], source: str, order: Sequence[str] = ()) -> list[str]:
    """The names of all classes in the train split, in the order of their numbers; for regression one for each number.

    order: that of the data set, if it has one; otherwise numbers are in order, and other names sorted. Raises UserError for fewer than
    needed.
    """
    if task == "regression":
        return [str(place) for place in range(len(labels[0]))]
    found = set(labels) if task == "classification" else {name for row in labels for name in row} - without(task).keys()
    numbered = all(_number(name) is not None for name in found)  # 10 comes after 9
    names = [name for name in order if name in found] or sorted(found, key=lambda name: (_number(name), name) if numbered else name)
    if len(names) < (1 if task == "multilabel" else 2):
        there = f"one class only ({names[0]})" if names else "no label"
        raise UserError(f"data file {source} has {there}: two or more are needed, check data.label_column")
    if task == "classification":
        _say_if_numbers(names, len(labels), source)
    return names


def without(task: str) -> dict[str, int]:
    """What a word without a label has in its place."""
    return {str(NO_LABEL): NO_LABEL} if task == "tokens" else {}


def _say_if_numbers(names: Sequence[str], rows: int, source: str) -> None:
    """Classifying measured quantities learns nothing of use, and looks like a result."""
    numbers = [number for name in names if (number := _number(name)) is not None]
    quantities = len(numbers) == len(names) and (any(n != int(n) for n in numbers) or len(names) > MOST_NUMBERS)
    if not quantities and not rows >= 10 < len(names) > rows / 2:
        return
    kind = "numbers" if quantities else "texts"
    print(
        f"data.label_column: {source} has {len(names):,} different labels in {rows:,} rows, which are {kind} such as {names[0]}: each "
        "becomes a class. If they are quantities, use data.task=regression; check data.label_column",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def targets(task: str, labels: Sequence[Any], classes: Sequence[str], source: str) -> Tensor | list[list[int]]:
    """int64 [N], float32 [N, classes], or for tokens a list of class numbers for each text.

    Raises UserError for a label without a class.
    """
    if task == "regression":
        return _values(labels, len(classes), source)
    place = {name: number for number, name in enumerate(classes)} | without(task)
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
            f"data file {source} has the label {row}, and the first train row has {how_many(count, 'number')}: "
            "give all as many"
        )
    return torch.tensor(labels, dtype=torch.float32)


def _numbers(labels: Iterable[str], place: dict[str, int], source: str) -> list[int]:
    found = []
    for label in labels:
        if label not in place:
            raise UserError(
                f"data file {source} has the label '{label}', which no train row has: use one of {', '.join(list(place)[:10])}."
                f"{nearest(label, place)}"
            )
        found.append(place[label])
    return found
