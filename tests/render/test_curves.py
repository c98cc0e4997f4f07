"""Curves of runs: from curves.csv; averaged over seeds, and thinned."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_comparison import write_curves

from mpx.render.curves import POINTS, band, read_curves


def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_line(tmp_path):
    write_curves(tmp_path, {"train/loss": [(i, i / 3) for i in range(10)]})
    path = tmp_path / "curves.csv"
    whole = path.read_bytes()
    for cut, left in ((0, 0), (7, 0), (len(whole) - 3, 9), (len(whole), 10)):
        path.write_bytes(whole[:cut])
        assert read_curves(tmp_path).get("train/loss", {}) == {i: i / 3 for i in range(left)}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=5))
def test_band_is_mean_lowest_and_highest(values):
    made = band([dict(enumerate(row)) for row in values])
    assert made.seeds == len(values)
    columns = list(zip(*values, strict=True))
    assert made.mean == pytest.approx([sum(column) / len(column) for column in columns], abs=1e-6)
    assert made.low.tolist() == [min(column) for column in columns]
    assert made.high.tolist() == [max(column) for column in columns]


def test_a_seed_counts_up_to_its_own_end_and_infinite_losses_do_not():
    made = band([{0: 3.0, 10: 2.0, 20: 1.0}, {0: 5.0, 10: 4.0, 20: np.inf}])
    assert made.steps.tolist() == [0, 10, 20]
    assert made.mean.tolist() == [4.0, 3.0, 1.0]
    assert band([{1: np.nan}]) is None


def test_a_long_curve_is_thinned_evenly():
    made = band([{i: i for i in range(5000)}])
    assert (len(made.steps), made.steps[0], made.steps[-1]) == (POINTS, 0, 4999)
    assert set(np.diff(made.steps)) <= {25, 26}
