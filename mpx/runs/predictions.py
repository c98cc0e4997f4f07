"""predictions.json: which samples of the test set a run has right. mpx.compare pairs settings over samples by it.

The order of a test set is fixed, and `test_set`, the checksum of its samples, labels and order, ties the file to it and to result.json.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from mpx.whole_file import write_whole

PREDICTIONS = "predictions.json"
LAYOUT = 1  # version of the file
MAX_SAMPLES = 500_000  # samples; as text their bits take 83 KB, and a field of a CSV file at most 128 KiB
MAX_CHECKSUM = 64  # characters of a checksum


@dataclass(frozen=True)
class Predictions:
    test_set: str
    samples: int
    bits: bytes  # one per sample, from the highest bit of the first byte on: 1 if the run has the sample right; 0 after the last

    @property
    def accuracy(self) -> float:
        return int.from_bytes(self.bits).bit_count() / self.samples

    @property
    def text(self) -> str:
        return base64.b64encode(self.bits).decode()


def write_predictions(folder: Path, predictions: Predictions) -> None:
    content = {"layout": LAYOUT, "test_set": predictions.test_set, "samples": predictions.samples, "right": predictions.text}
    write_whole(folder / PREDICTIONS, json.dumps(content, indent=2) + "\n")


def predictions_from(test_set: str, samples: int, text: str) -> Predictions:
    """Raises ValueError for values that `write_predictions` cannot have written. text: as `Predictions.text`."""
    if not isinstance(test_set, str) or not 0 < len(test_set) <= MAX_CHECKSUM or not test_set.isascii() or not test_set.isalnum():
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
