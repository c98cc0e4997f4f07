"""Curves out of event files: what TensorBoard itself reads, thinned, without what is not drawn."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_comparison import write_events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from mpx.compare import events
from mpx.compare.curves import band, bands, read_curves

NAME = "events.out.tfevents.{}.host"


def test_reads_what_tensorboard_reads(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(150):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
            writer.add_scalar("train/loss_other", 7.0, step)
            writer.add_scalar("val/loss", step, step, new_style=True)  # stored as a tensor
        writer.add_text("train/loss/text", "train/loss " * 1000)
    expected = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    found = read_curves(tmp_path, ["train/loss", "val/loss", "not/there"])
    assert set(found) == {"train/loss", "val/loss"}
    steps, values = found["train/loss"]
    assert steps.tolist() == list(range(150))
    assert values.tolist() == [event.value for event in expected.Scalars("train/loss")]
    assert found["val/loss"][1].tolist() == list(range(150))


def test_thins_evenly(tmp_path):
    write_events(tmp_path / NAME.format(1), {"a": [(i, i) for i in range(5000)], "b": [(i, i) for i in range(5000)]})
    steps, values = read_curves(tmp_path, ["a"], points=100)["a"]
    assert len(steps) == 100
    assert (steps[0], steps[-1]) == (0, 4999)
    assert steps.tolist() == values.tolist()
    assert set(np.diff(steps)) <= {50, 51}


def test_reads_only_what_it_keeps(tmp_path, monkeypatch):
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(300):
            writer.add_scalar("a", step, step, new_style=True)
    parsed = []
    original = events._of_tensor
    monkeypatch.setattr(events, "_of_tensor", lambda *event: parsed.append(1) or original(*event))
    assert len(read_curves(tmp_path, ["a"], points=10)["a"][0]) == len(parsed) == 10


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.floats(width=32)), min_size=1, max_size=20), st.text("a/\n*\t长", min_size=1, max_size=100)
)
def test_any_step_value_and_tag(values, tag):
    with TemporaryDirectory() as folder:
        write_events(Path(folder) / NAME.format(1), {tag: values, tag + "b": values[:1], tag[1:]: values[:1]} if tag[1:] else {tag: values})
        steps, found = read_curves(Path(folder), [tag])[tag]
    assert steps.tolist() == [step for step, _ in values]
    assert np.array_equal(found, [value for _, value in values], equal_nan=True)


def test_a_cut_off_file_is_read_up_to_the_cut(tmp_path):
    path = tmp_path / NAME.format(1)
    write_events(path, {"a": [(i, i) for i in range(10)]})
    whole = path.read_bytes()
    for cut in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        found = read_curves(tmp_path, ["a"])
        assert ("a" in found) == (cut > 60)
        assert found.get("a", ([], []))[0] == pytest.approx(range(len(found.get("a", ([], []))[0])))
    assert len(found["a"][0]) == 9


def test_a_resumed_run_counts_once(tmp_path):
    write_events(tmp_path / NAME.format(1), {"a": [(i, 1.0) for i in range(10)]})
    write_events(tmp_path / NAME.format(2), {"a": [(i, 2.0) for i in range(7, 12)]})
    steps, values = read_curves(tmp_path, ["a"])["a"]
    assert steps.tolist() == list(range(12))
    assert values.tolist() == [1.0] * 7 + [2.0] * 5


def test_no_folder_no_curves(tmp_path):
    assert read_curves(tmp_path / "gone", ["a"]) == {}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=5))
def test_band_is_mean_lowest_and_highest(values):
    seeds = [(np.arange(3), np.array(row)) for row in values]
    found = band(seeds)
    assert found.seeds == len(values)
    columns = list(zip(*values, strict=True))
    assert found.mean == pytest.approx([sum(column) / len(column) for column in columns], abs=1e-6)
    assert found.low.tolist() == [min(column) for column in columns]
    assert found.high.tolist() == [max(column) for column in columns]


def test_a_seed_counts_up_to_its_own_end_and_infinite_losses_do_not():
    whole = (np.array([0, 10, 20]), np.array([3.0, 2.0, 1.0]))
    diverged = (np.array([0, 10, 20]), np.array([5.0, 4.0, np.inf]))
    found = band([whole, diverged])
    assert found.steps.tolist() == [0, 10, 20]
    assert found.mean.tolist() == [4.0, 3.0, 1.0]
    assert band([(np.array([1]), np.array([np.nan]))]) is None


def test_bands_by_tag_and_setting(tmp_path):
    for seed in (0, 1):
        write_events(tmp_path / f"seed{seed}" / NAME.format(1), {"a": [(0, float(seed))]})
    found = bands({"one": [tmp_path / "seed0", tmp_path / "seed1"], "none": []}, ["a", "b"])
    assert found["b"] == {}
    assert list(found["a"]) == ["one"]
    assert found["a"]["one"].mean.tolist() == [0.5]
