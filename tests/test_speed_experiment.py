"""experiments/speed: its script runs here at tiny sizes, and its card says what its rows say."""

import csv
import re

import pytest
from experiment import EXPERIMENTS
from processes import Fork

FOLDER = EXPERIMENTS / "speed"
HALF_A_DIGIT = 0.0005  # of the seconds in a note


def measured(tmp_path, *arguments):
    """The rows that a trial of run.py writes."""
    words, out = ["--tiny", "--rounds", "1", *arguments], {"OUT": str(tmp_path)}
    run = Fork(*words, folder=tmp_path, env=out, script=FOLDER / "run.py")
    assert run.wait(280) == 0, run.err
    with open(tmp_path / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_text_models(tmp_path):
    sections = ["--sections", "rivals", "--precisions", "amp_bf16"]
    rows = measured(tmp_path, *sections, "--models", "bert_small")
    found = {(row["section"], row["model"], row["contender"]) for row in rows}
    assert {
        ("rivals", "bert_small", name) for name in ("mpx", "hand", "loop", "lightning", "lightning, tuned")
    } <= found
    for name in ("mpx, pool=first", "hand, types looked up", "transformers", "transformers, tuned"):
        assert ("rivals", "bert_small", name) in found
    for row in rows:
        assert all(row[name] for name in ("commit", "time", "host", "device", "torch")), row
        assert row["samples_per_s"] or "No module named 'accelerate'" in row["note"], row
        assert row["contender"].startswith(("transformers", "mpx")) or row["note"]


@pytest.mark.slow
def test_image_models(tmp_path):
    words = "--sections rivals --models resnet50 --precisions amp_bf16 --contenders hand,timm"
    rows = measured(tmp_path, *words.split())
    assert [row["contender"] for row in rows] == ["hand", "timm"]
    assert all(float(row["samples_per_s"]) > 0 for row in rows), rows


@pytest.mark.slow
def test_a_whole_run(tmp_path):
    (row,) = measured(tmp_path, "--sections", "whole")
    rate, seconds = map(float, re.match(r"its steps (\S+) samples/s; (\S+) s: ", row["note"]).groups())
    parts = {
        name: float(part) for name, part in re.findall(r"(\w+) (\d+\.\d+)", row["note"].partition(" s: ")[2])
    }
    assert parts.keys() == {"warmup", "steps", "validation", "other", "end"}
    assert sum(parts.values()) == pytest.approx(seconds, abs=0.01)
    batch, steps = int(row["batch"]), int(row["steps"])
    assert float(row["samples_per_s"]) * seconds == pytest.approx(batch * steps, rel=0.01)
    timed = rate * parts["steps"] / batch
    # a whole number of steps, but for the rounding of their seconds
    assert timed == pytest.approx(round(timed), rel=0.01, abs=HALF_A_DIGIT * rate / batch)
    assert 0 < round(timed) < steps  # without those of the warm-up
