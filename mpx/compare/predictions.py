"""Read a run's predictions.json. It is not trusted: a file that does not fit the run's record is left out, with the reason."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpx.compare.json_file import DAMAGED, in_short, read_json
from mpx.record.files import LAYOUT, PREDICTIONS, Predictions, predictions_from

ACCURACY = "test/accuracy"
ROUNDING = 1e-9


def read_predictions(folder: Path, record: Mapping[str, Any]) -> tuple[Predictions | None, list[str]]:
    """(the folder's predictions, why they are left out). record: of the same folder; test set and accuracy must agree with it."""
    if not (folder / PREDICTIONS).is_file():
        return None, []
    try:
        found = read_json(folder / PREDICTIONS)
        if found["layout"] != LAYOUT:
            raise ValueError(f"its layout is {found['layout']!r}, this mpx reads {LAYOUT}")
        predictions = predictions_from(found["test_set"], found["samples"], found["right"])
        refuse_others(predictions, (record.get("data") or {}).get("test_set"), record["metrics"].get(ACCURACY))
    except (OSError, *DAMAGED) as error:
        return None, [f"{PREDICTIONS} does not count: {in_short(error)}"]
    return predictions, []


def refuse_others(predictions: Predictions, test_set: str | None, accuracy: float | None) -> None:
    """Raise ValueError for predictions of another test set, or with another accuracy than the run's."""
    if predictions.test_set != test_set:
        raise ValueError(f"it is of test set {predictions.test_set}, the run of {test_set}")
    share = predictions.accuracy
    if accuracy is None or abs(share - accuracy) > ROUNDING:
        raise ValueError(f"it has {share:.6f} of the samples right, the run {accuracy}")
