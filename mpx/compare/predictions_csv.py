"""predictions.csv, beside results.csv: which test samples each run has right, one row per run, written and read without loss."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mpx.compare.predictions import ACCURACY, refuse_others
from mpx.compare.run import Run
from mpx.compare.run_tables import RUN, key_of, with_table
from mpx.csv_file import to_text
from mpx.record.files import Predictions, predictions_from

NAME = "predictions.csv"
COLUMNS = (*RUN, "test_set", "samples", "right")


def to_csv(runs: Iterable[Run]) -> str:
    """A header, and one row per run whose predictions are known."""
    return to_text(COLUMNS, (_row(run, run.predictions) for run in runs if run.predictions is not None))


def _row(run: Run, found: Predictions) -> dict[str, str]:
    return dict(zip(COLUMNS, [*key_of(run), found.test_set, str(found.samples), found.text], strict=True))


def with_predictions(runs: Iterable[Run], results: Path) -> list[Run]:
    """The runs with their predictions from the predictions.csv beside `results`.

    Raises UserError for a file that `to_csv` cannot have written.
    """
    return with_table(runs, results.with_name(NAME), _predictions, _with)


def _predictions(row: dict[str, str]) -> Predictions:
    return predictions_from(row["test_set"], int(row["samples"]), row["right"])


def _with(run: Run, found: list[Predictions]) -> Run:
    if not found:
        return run
    refuse_others(found[-1], found[-1].test_set, run.metrics.get(ACCURACY))
    return replace(run, predictions=found[-1])
