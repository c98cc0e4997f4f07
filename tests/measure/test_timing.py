"""Timing against a known truth: calls that take a known time by a clock of their own."""

import pytest
import torch

from mpx.measure.timing import elapsed, median_time

CPU = torch.device("cpu")


def test_median_of_a_call(clock):
    timing = median_time(lambda: clock.sleep(0.01), CPU, budget_s=0.2)
    assert timing.seconds == pytest.approx(0.01)
    assert timing.calls == 2
    assert timing.samples == 10


def test_a_slow_first_call_is_warm_up(clock):
    calls = iter(range(10_000))
    found = median_time(lambda: clock.sleep(0.3 if next(calls) == 0 else 0.005), CPU, budget_s=0.1)
    assert found.seconds == pytest.approx(0.005)


def test_short_calls_share_a_sample(clock):
    timing = median_time(lambda: clock.sleep(1e-5), CPU, budget_s=0.1)
    assert timing.calls == pytest.approx(2000, abs=1)
    assert timing.seconds == pytest.approx(1e-5)


def test_elapsed_counts_every_call(clock):
    assert elapsed(lambda: clock.sleep(0.01), CPU, 5) == pytest.approx(0.05)
