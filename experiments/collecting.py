"""What the experiments' scripts share: measurements or runs into results.csv with what they come from, and
rows into parts of a card.
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NoReturn

COMMON = (
    "model",
    "data",
    "precision",
    "sparsity",
    "seed",
    "status",
    "test_accuracy",
    "max_epochs",
    "batch_size",
)
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


def file_to_write() -> Path:
    """The one argument of a script that writes one file."""
    parser = Arguments()
    parser.add_argument("file", type=Path)
    return parser.parse_args().file


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


def records(outputs: Path, study: str) -> Iterator[tuple[dict, dict]]:
    """(record, its COMMON columns) of every run of a study below `outputs`; `study` may be a pattern, as
    every_*.
    """
    for file in sorted(outputs.glob(f"{study}/*/seed*/result.json")):
        record = json.loads(file.read_text())
        flat = (
            record["setting"]
            | record["environment"]
            | {"status": record["status"], "study": file.parents[2].name}
        )
        flat |= {
            "test_accuracy": record["metrics"].get("test/accuracy"),
            "max_epochs": record["config"]["trainer"]["max_epochs"],
        }
        flat |= {"batch_size": record["config"]["data"]["batch_size"]} | origin_of(record["environment"])
        yield record, flat


def finished(study: Path, count: int) -> list:
    """The `count` runs of a study. Exits if any is missing. One that diverged is a result, though its sweep
    ends with an error.
    """
    from mpx.compare.collect import collect

    runs, left_out = collect(study)
    if len(runs) < count:
        reasons = "".join(f"\n{folder}: {reason}" for folder, reason in left_out)
        sys.exit(
            f"error: {len(runs)} of {count} runs of {study.name} are there. The same command goes "
            f"on.{reasons}"
        )
    return runs


def collect(here: Path, columns: Sequence[str], runs: Callable[[Path], list[dict]]) -> list[dict[str, str]]:
    """The rows of here/results.csv, written anew first from `runs` of a folder of outputs, if the command
    line names one.
    """
    parser = Arguments()
    parser.add_argument("outputs", type=Path, nargs="?")
    if outputs := parser.parse_args().outputs:
        rows = runs(outputs)
        if not rows:
            sys.exit(
                f"error: {outputs} holds no runs of this experiment. Give the folder that run.sh "
                "wrote to, usually outputs."
            )
        write(here / "results.csv", columns, rows)
    return read(here / "results.csv")


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


def put_between(mark: str, end: str, text: str, card: Path) -> None:
    """Replace what stands between two marks of a card, which may not exist yet."""
    before, _, rest = (card.read_text() if card.exists() else "").partition(mark)
    after = rest.partition(end)[2] or "\n"
    card.write_text(f"{before}{mark}\n\n{text.strip()}\n\n{end}{after}")


def percent(rows: Sequence[dict[str, str]]) -> list[float]:
    """Test accuracies in percent of the runs that were completed."""
    return [100 * float(row["test_accuracy"]) for row in rows if row["status"] == "completed"]


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, two digits; of one value no deviation."""
    return (
        "–"
        if not values
        else f"{mean(values):.2f} ± {stdev(values):.2f}"
        if len(values) > 1
        else f"{values[0]:.2f}"
    )


def said(rows: Sequence[dict[str, str]], template: str) -> str:
    """What the template becomes by each row, each text once."""
    return "; ".join(
        sorted({template.format_map({name: value or "–" for name, value in row.items()}) for row in rows})
    )


def ran_on(rows: Sequence[dict[str, str]]) -> str:
    return said(rows, "{device}, torch {torch}, driver {driver}")


def completed(rows: Sequence[dict[str, str]]) -> str:
    """How many runs came to their end, and what became of the others."""
    others = [
        f"{row['sparsity']} seed {row['seed']} {row['status']}"
        for row in rows
        if row["status"] != "completed"
    ]
    return f"{len(rows) - len(others)} of {len(rows)} runs completed" + (
        f" ({', '.join(others)})" if others else ""
    )
