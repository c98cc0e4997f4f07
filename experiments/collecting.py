"""What the experiments' scripts share: measurements or runs into results.csv, and rows of results.csv into the parts of a card."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

COMMON = (
    "model", "data", "precision", "sparsity", "seed", "status", "test_accuracy", "max_epochs", "batch_size", "device", "torch", "driver",
)  # fmt: skip


def records(outputs: Path, study: str) -> Iterator[tuple[dict, dict]]:
    """(record, its COMMON columns) of every run of a study below `outputs`; `study` may be a pattern, as every_*."""
    for file in sorted(outputs.glob(f"{study}/*/seed*/result.json")):
        record = json.loads(file.read_text())
        flat = record["setting"] | record["environment"] | {"status": record["status"], "study": file.parents[2].name}
        flat |= {"test_accuracy": record["metrics"].get("test/accuracy"), "max_epochs": record["config"]["trainer"]["max_epochs"]}
        flat |= {"batch_size": record["config"]["data"]["batch_size"], "device": " + ".join(flat.get("device") or []) or "CPU"}
        yield record, flat


def collect(here: Path, columns: Sequence[str], read: Callable[[Path], list[dict]]) -> list[dict[str, str]]:
    """The rows of here/results.csv, written anew first if the command line names a folder of outputs to `read`."""
    if len(sys.argv) > 1:
        rows = read(Path(sys.argv[1]))
        if not rows:
            sys.exit(f"error: {sys.argv[1]} holds no runs of this experiment. Give the folder that run.sh wrote to, usually outputs.")
        _write(here, columns, rows)
    return _read(here)


def _write(here: Path, columns: Sequence[str], rows: list[dict]) -> None:
    with open(here / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _read(here: Path) -> list[dict[str, str]]:
    with open(here / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def measured(here: Path, columns: Sequence[str], measure: Callable[[], list[dict]]) -> list[dict[str, str]]:
    """The rows of here/results.csv, measured anew first unless the command line says --card."""
    if "--card" not in sys.argv:
        _write(here, columns, measure())
    return _read(here)


def percent(rows: Sequence[dict[str, str]]) -> list[float]:
    """Test accuracies in percent of the runs that were completed."""
    return [100 * float(row["test_accuracy"]) for row in rows if row["status"] == "completed"]


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, two digits; of one value no deviation."""
    return "–" if not values else f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def ran_on(rows: Sequence[dict[str, str]]) -> str:
    return "; ".join(sorted({f"{row['device']}, torch {row['torch']}, driver {row['driver'] or '–'}" for row in rows}))


def completed(rows: Sequence[dict[str, str]]) -> str:
    """How many runs came to their end, and what became of the others."""
    others = [f"{row['sparsity']} seed {row['seed']} {row['status']}" for row in rows if row["status"] != "completed"]
    return f"{len(rows) - len(others)} of {len(rows)} runs completed" + (f" ({', '.join(others)})" if others else "")
