"""What a run leaves beside result.json for mpx.compare: curves.csv and predictions.json.

curves.csv has the scalars that a comparison draws, so that it need not read TensorBoard's events.
predictions.json says which samples of the test set a run has right, so that settings can be paired over
samples. The order of a test set is fixed, and `test_set`, the checksum of its samples, labels and order, ties
that file to the set and to result.json.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpx.system.whole_file import write_whole

CURVES = "curves.csv"
TAGS = ("train/loss", "val/loss", "numerics/loss_scale", "numerics/gradient_underflow_fraction")
HEADER = "tag,step,value\n"
# tag, step, value
ROW = re.compile(r"([\w/]+),(\d{1,18}),(-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf)|nan)", re.ASCII)
PREDICTIONS = "predictions.json"
LAYOUT = 1  # version of the file
MAX_SAMPLES = 500_000  # samples; as text their bits take 83 KB, and a field of a CSV file at most 128 KiB
MAX_CHECKSUM = 64  # characters of a checksum


class CurveFile:
    """Appends a row `tag,step,value` for every value of TAGS. A resumed run first removes the rows that it
    will write again.

    first_step: the first step that this part of the run may write; 0 for a new run.
    """

    def __init__(self, folder: Path, first_step: int):
        path = folder / CURVES
        found = map(ROW.fullmatch, rows(path)) if first_step and path.is_file() else ()
        # a damaged row becomes a gap in the curve
        kept = [row[0] for row in found if row is not None and int(row[2]) < first_step]
        write_whole(path, HEADER + "".join(f"{row}\n" for row in kept))
        # line by line, so that a killed run leaves whole lines
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def append(self, values: Mapping[str, float], step: int) -> None:
        self._file.writelines(f"{tag},{step},{float(values[tag])!r}\n" for tag in TAGS if tag in values)

    def close(self) -> None:
        self._file.close()


def rows(path: Path) -> list[str]:
    """The rows `tag,step,value` of a curves.csv, without the header and without an incomplete last line."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[1:-1]


@dataclass(frozen=True)
class Predictions:
    test_set: str
    samples: int
    # one per sample, from the highest bit of the first byte on: 1 if the run has the sample right; 0 after
    # the last
    bits: bytes

    @property
    def accuracy(self) -> float:
        return int.from_bytes(self.bits).bit_count() / self.samples

    @property
    def text(self) -> str:
        return base64.b64encode(self.bits).decode()


def write_predictions(folder: Path, predictions: Predictions) -> None:
    content = {
        "layout": LAYOUT,
        "test_set": predictions.test_set,
        "samples": predictions.samples,
        "right": predictions.text,
    }
    write_whole(folder / PREDICTIONS, json.dumps(content, indent=2) + "\n")


def predictions_from(test_set: str, samples: int, text: str) -> Predictions:
    """Raises ValueError for values that `write_predictions` cannot have written. text: as
    `Predictions.text`.
    """
    if (
        not isinstance(test_set, str)
        or not 0 < len(test_set) <= MAX_CHECKSUM
        or not test_set.isascii()
        or not test_set.isalnum()
    ):
        raise ValueError("test_set is not a checksum")
    if type(samples) is not int or not 0 < samples <= MAX_SAMPLES:
        raise ValueError(f"samples must be a number from 1 to {MAX_SAMPLES:,}")
    if not isinstance(text, str):
        raise ValueError("right is not text")
    bits, length = base64.b64decode(text, validate=True), -(-samples // 8)
    if len(bits) != length:
        raise ValueError(f"right has {len(bits)} bytes, {samples} samples take {length}")
    if int.from_bytes(bits) & ((1 << (8 * length - samples)) - 1):
        raise ValueError("right has bits beyond the last sample")
    return Predictions(test_set, samples, bits)
