"""What the experiments' scripts share: measurements into results.csv with what they come from, and tables into
the marked parts of a card.
"""

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

# the last columns of every table: what was measured, when and where
ORIGIN = ("commit", "time", "host", "device", "driver", "torch")


class Arguments(argparse.ArgumentParser):
    """The command line of the script that was started: --help prints its docstring, and a mistake is one
    line.
    """

    def __init__(self) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(description=sys.modules["__main__"].__doc__, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message.rstrip('.')}. --help lists what is allowed.\n")


def some_of(allowed: Iterable[Any]) -> Callable[[str], list[Any]]:
    """The type of an option that takes several of `allowed`, as a,b."""
    words = {str(value): value for value in allowed}

    def taken(text: str) -> list[Any]:
        if unknown := set(text.split(",")) - set(words):
            raise argparse.ArgumentTypeError(f"{min(unknown)} is not one of {', '.join(words)}")
        return [words[word] for word in text.split(",")]

    return taken


def origin_of(environment: dict[str, Any]) -> dict[str, str]:
    """The ORIGIN of a run, by the `environment` of its record. Of the host it has the processor's name, and
    what tells hosts apart.
    """
    commit = (environment["git"] or "") + (" with changes" if environment["git_dirty"] else "")
    device, driver = " + ".join(dict.fromkeys(environment["device"] or ["CPU"])), environment["driver"] or ""
    host = " #".join(filter(None, (environment["cpu"], environment.get("host"))))
    more = {"time": environment["started_at"], "host": host}
    return {"commit": commit} | more | {"device": device, "driver": driver, "torch": environment["torch"]}


def origin() -> dict[str, str]:
    """The ORIGIN of what this process measures."""
    from mpx.measure.environment import environment

    return origin_of(environment()) | {"time": now()}


def each_gpu() -> list[dict[str, str]]:
    """The environment of a process that has one GPU for itself, for each GPU that this process may use; an
    empty one without a GPU.
    """
    import torch

    names = os.environ.get(
        "CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))
    ).split(",")
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names[: torch.cuda.device_count()]] or [{}]


def bert_without_mask() -> None:
    """Let transformers' BERT make no attention mask. In version 5.17 a compiled or recorded one makes a mask
    of ones, and pays for it.
    """
    from transformers.models.bert import modeling_bert

    modeling_bert.create_bidirectional_mask = lambda **_: None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def table(path: Path, columns: Sequence[str]) -> Iterator[Callable[[dict], None]]:
    """A function that writes one row to the CSV file, and its ORIGIN where the row does not have it. Each row
    is on disk at once.
    """
    here = origin()
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(
            file,
            [*(name for name in columns if name not in ORIGIN), *ORIGIN],
            extrasaction="ignore",
            lineterminator="\n",
        )
        writer.writeheader()

        def add(row: dict) -> None:
            writer.writerow(here | {"time": now()} | row)
            file.flush()

        yield add


def write(path: Path, columns: Sequence[str], rows: Iterable[dict]) -> None:
    """Exits before the file is opened if there is no row: what was measured earlier is not lost to a call
    that measures nothing.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        sys.exit(f"error: nothing was measured; {path} stays as it is.")
    with table(path, columns) as add:
        for row in chain([first], rows):
            add(row)


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def measured(
    here: Path, columns: Sequence[str], measure: Callable[[], Iterable[dict]], file: str = "results.csv"
) -> list[dict[str, str]]:
    """The rows of here/`file`, measured anew first unless the command line says --card. The folder is $OUT,
    where that is set.
    """
    parser = Arguments()
    parser.add_argument("--card", action="store_true", help="measure nothing")
    given = parser.parse_args()
    folder = Path(os.environ.get("OUT") or here)
    if not given.card:
        write(folder / file, columns, measure())
    return read(folder / file)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of a card."""
    return "\n".join([line(heads), "|---" * len(heads) + "|", *map(line, rows)])


def line(cells: Sequence[object]) -> str:
    """A line of such a table."""
    return "|" + "".join(f" {cell} |" if str(cell) else " |" for cell in cells)


def fill(card: Path, parts: dict[str, str]) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end of NAME -->` in a card, for each part."""
    text = card.read_text(encoding="utf-8")
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if not end:
            sys.exit(f"error: {card} has no lines <!-- {name} --> and <!-- end of {name} -->.")
        text = f"{before}{mark}\n{part.strip()}\n\n{end}{after}"
    card.write_text(text, encoding="utf-8")


def said(rows: Sequence[dict[str, str]], template: str) -> str:
    """What the template becomes by each row, each text once."""
    return "; ".join(
        sorted({template.format_map({name: value or "–" for name, value in row.items()}) for row in rows})
    )
