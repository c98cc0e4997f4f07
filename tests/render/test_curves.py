"""Curves of runs: from curves.csv; thinned, and averaged over seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_comparison import write_curves

from mpx.render.curves import POINTS, band, read_curves


def test_thins_evenly(tmp_path):
    write_curves(tmp_path, {"train/loss": [(i, i) for i in range(5000)]})
    steps, values = read_curves(tmp_path)["train/loss"]
    assert len(steps) == POINTS
    assert (steps[0], steps[-1]) == (0, 4999)
    assert steps.tolist() == values.tolist()
    assert set(np.diff(steps)) <= {25, 26}


def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_line(tmp_path):
    write_curves(tmp_path, {"train/loss": [(i, i / 3) for i in range(10)]})
    path = tmp_path / "curves.csv"
    whole = path.read_bytes()
    for cut, there in ((0, 0), (7, 0), (len(whole) - 3, 9), (len(whole), 10)):
        path.write_bytes(whole[:cut])
        found = read_curves(tmp_path)
        assert [len(steps) for steps, _ in found.values()] == [there] * bool(there)


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
