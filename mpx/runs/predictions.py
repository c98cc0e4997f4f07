"""predictions.json: which samples of the test set a run has right, by which settings are paired over samples.

The order of a test set is fixed, and `test_set`, the checksum of its samples, labels and order, ties the file to it and to result.json.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpx.whole_file import write_whole

PREDICTIONS = "predictions.json"
LAYOUT = 1  # version of the file
LARGEST = 500_000  # samples; as text their bits take 83 KB, and a field of a CSV file at most 128 KiB


@dataclass(frozen=True)
class Predictions:
    test_set: str
    samples: int
    bits: bytes  # one for each sample, the first the highest of its byte: 1 if the run has the sample right

    @property
    def right(self) -> np.ndarray:
        """bool [samples]"""
        return np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.samples).astype(bool)

    @property
    def text(self) -> str:
        return base64.b64encode(self.bits).decode()


def predictions_of(right: np.ndarray, test_set: str) -> Predictions:
    """right: bool [samples]."""
    return Predictions(test_set, len(right), np.packbits(right).tobytes())


def write_predictions(folder: Path, predictions: Predictions) -> None:
    content = {"layout": LAYOUT, "test_set": predictions.test_set, "samples": predictions.samples, "right": predictions.text}
    write_whole(folder / PREDICTIONS, json.dumps(content, indent=2) + "\n")


def predictions_from(test_set: str, samples: int, text: str) -> Predictions:
    """Raises ValueError for what `Predictions.text` cannot have written."""
    if not isinstance(test_set, str) or not 0 < len(test_set) <= 64 or not test_set.isalnum() or not test_set.isascii():
        raise ValueError("test_set is no checksum")
    if type(samples) is not int or not 0 < samples <= LARGEST:
        raise ValueError(f"samples is {str(samples)[:20]}, and must be 1 to {LARGEST:,}")
    if not isinstance(text, str):
        raise ValueError("right is no text")
    bits = base64.b64decode(text, validate=True)
    if len(bits) != -(-samples // 8):
        raise ValueError(f"right has {len(bits)} bytes, and {samples} samples take {-(-samples // 8)}")
    found = Predictions(test_set, samples, bits)
    if np.packbits(found.right).tobytes() != bits:
        raise ValueError("right has bits beyond the last sample")
    return found
