"""Tables beside results.csv, served.csv and predictions.csv, whose rows name a run by its settings and seed."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from mpx.compare.json_file import DAMAGED, in_short
from mpx.compare.run import Run, text_of
from mpx.csv_file import rows_of
from mpx.errors import UserError

RUN = ("model", "data", "precision", "sparsity", "changes", "seed")
T = TypeVar("T")


def key_of(run: Run) -> tuple[str, ...]:
    """The run's fields RUN."""
    return run.model, run.data, run.precision, run.sparsity, text_of(run.changes), str(run.seed)


def with_table(runs: Iterable[Run], path: Path, read: Callable[[dict[str, str]], T], add: Callable[[Run, list[T]], Run]) -> list[Run]:
    """The runs with the contents of the table; unchanged if there is no table.

    read: parses a row. add: adds a run's parsed rows to it. Raises UserError, naming the file, if either fails.
    """
    found: dict[tuple[str, ...], list[T]] = defaultdict(list)
    if not path.is_file():
        return list(runs)
    try:
        for _, row in rows_of(path.read_text(encoding="utf-8-sig")):
            found[tuple(row[name] for name in RUN)].append(read(row))
        return [add(run, found[key_of(run)]) for run in runs]
    except (OSError, *DAMAGED) as error:
        raise UserError(
            f"{path} was not written by mpx.compare ({in_short(error)}). Remove it, or write it again from its study."
        ) from error
