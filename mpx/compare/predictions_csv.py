"""predictions.csv, beside results.csv: which test samples each run has right, one row per run, written and read without loss."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mpx.compare.comparison import Run
from mpx.compare.predictions import ACCURACY, refuse_others
from mpx.compare.served_csv import RUN, key_of
from mpx.csv_file import rows_of, to_text
from mpx.errors import UserError
from mpx.runs.predictions import Predictions, predictions_from

NAME = "predictions.csv"
COLUMNS = (*RUN, "test_set", "samples", "right")


def to_csv(runs: Iterable[Run]) -> str:
    """A header, and one row per run whose predictions are known."""
    return to_text(COLUMNS, (_row(run, run.predictions) for run in runs if run.predictions is not None))


def _row(run: Run, found: Predictions) -> dict[str, str]:
    return dict(zip(COLUMNS, [*key_of(run), found.test_set, str(found.samples), found.text], strict=True))


def with_predictions(runs: Iterable[Run], results: Path) -> list[Run]:
    """The runs with what the predictions.csv beside `results` says of them; as they are where there is none.

    Raises UserError, naming file and line, for a file that `to_csv` cannot have written.
    """
    path, runs = results.with_name(NAME), list(runs)
    if not path.is_file():
        return runs
    try:
        rows = {tuple(row[name] for name in RUN): row for _, row in rows_of(path.read_text(encoding="utf-8-sig"))}
        return [_with(run, rows.get(key_of(run))) for run in runs]
    except (OSError, ValueError, KeyError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise UserError(f"{path} was not written by mpx.compare ({what}). Remove it, or write it again from its study.") from error


def _with(run: Run, row: dict[str, str] | None) -> Run:
    if row is None:
        return run
    found = predictions_from(row["test_set"], int(row["samples"]), row["right"])
    refuse_others(found, found.test_set, run.metrics.get(ACCURACY))
    return replace(run, predictions=found)
