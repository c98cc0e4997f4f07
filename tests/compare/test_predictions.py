"""A run's predictions.json is read as it was written; one that does not fit its record is set aside with one line."""

import json

import pytest
from made_runs import record, write

from mpx.compare.collect import collect
from mpx.record.files import PREDICTIONS, Predictions, write_predictions

KEPT = Predictions("0a1b2c3d", 20, b"\xff\xff\x80")  # 17 of 20 right


@pytest.fixture
def folder(tmp_path):
    folder = write(tmp_path / "a" / "seed0", record(accuracy=0.85) | {"data": {"test_set": "0a1b2c3d"}})
    write_predictions(folder, KEPT)
    return folder


def test_without_loss(folder):
    ((run,), left_out) = collect(folder.parents[1])
    assert (run.predictions, left_out) == (KEPT, [])
    assert KEPT.accuracy == 0.85


def test_a_run_without_the_file_counts(folder):
    (folder / PREDICTIONS).unlink()
    ((run,), left_out) = collect(folder.parents[1])
    assert (run.predictions, left_out) == (None, [])


HOSTILE = {
    "truncated": (lambda content: json.dumps(content)[:40], "Unterminated string"),
    "not an object": (lambda content: "[]", "TypeError"),
    "deep": (lambda content: "[" * 100_000, "RecursionError"),
    "later layout": (lambda content: json.dumps(content | {"layout": 2}), "its layout is 2, this mpx reads 1"),
    "no bits": (lambda content: json.dumps({"layout": 1, "test_set": "0a1b2c3d", "samples": 20}), "KeyError: 'right'"),
    "wrong length": (lambda content: json.dumps(content | {"samples": 40}), "right has 3 bytes, 40 samples take 5"),
    "beyond the last": (lambda content: json.dumps(content | {"samples": 17, "right": "///A"}), "right has bits beyond the last sample"),
    "no samples": (lambda content: json.dumps(content | {"samples": 0}), "samples must be a number from 1 to 500,000"),
    "huge": (lambda content: json.dumps(content | {"samples": 10**400}), "ValueError"),
    "no text": (lambda content: json.dumps(content | {"right": [1, 0]}), "right is not text"),
    "not base64": (lambda content: json.dumps(content | {"right": "//+\x1b[2J"}), "Error"),
    "other data": (lambda content: json.dumps(content | {"test_set": "ffffffff"}), "it is of test set ffffffff, the run of 0a1b2c3d"),
    "escape": (lambda content: json.dumps(content | {"test_set": "\x1b[2J"}), "test_set is not a checksum"),
    "other run": (lambda content: json.dumps(content | {"right": "//8A"}), "it has 0.800000 of the samples right, the run 0.85"),
}


@pytest.mark.parametrize(("spoil", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_does_not_fit_is_set_aside_with_one_line(folder, spoil, reason):
    (folder / PREDICTIONS).write_text(spoil(json.loads((folder / PREDICTIONS).read_text())))
    ((run,), ((name, line),)) = collect(folder.parents[1])
    assert (run.predictions, run.metrics["test/accuracy"], name) == (None, 0.85, "a/seed0")
    assert line.startswith(f"{PREDICTIONS} does not count: ")
    assert reason in line
    assert line.isprintable()


@pytest.mark.parametrize("data", [None, {}, [], "x", {"test_set": 1}])
def test_a_record_that_does_not_name_its_test_set_has_none(folder, data):
    write(folder, record(accuracy=0.85) | {"data": data})
    runs, left_out = collect(folder.parents[1])
    assert len(left_out) == 1
    assert all(run.predictions is None for run in runs)
