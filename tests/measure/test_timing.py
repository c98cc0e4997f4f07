"""Timing against a known truth: calls that sleep."""

import time

import pytest
import torch

from mpx.measure.timing import LEAST, MOST, elapsed, median_time

CPU = torch.device("cpu")


def test_median_of_a_call_that_sleeps():
    timing = median_time(lambda: time.sleep(0.01), CPU, budget_s=0.2)
    assert timing.seconds == pytest.approx(0.01, rel=0.25)
    assert timing.calls in (1, 2)
    assert LEAST <= timing.samples <= MOST


def test_one_slow_call_does_not_move_the_median():
    calls = iter(range(10_000))

    def mostly_fast():
        time.sleep(0.5 if next(calls) == 30 else 0.005)

    assert median_time(mostly_fast, CPU, budget_s=0.3).seconds == pytest.approx(0.005, rel=0.3)


def test_a_slow_first_call_is_warm_up():
    calls = iter(range(10_000))
    assert median_time(lambda: time.sleep(0.3 if next(calls) == 0 else 0.005), CPU, budget_s=0.1).seconds < 0.01


def test_short_calls_share_a_sample():
    timing = median_time(lambda: None, CPU, budget_s=0.1)
    assert timing.calls > 100
    assert timing.seconds < 1e-4


def test_elapsed_counts_every_call():
    assert elapsed(lambda: time.sleep(0.01), CPU, 5) == pytest.approx(0.05, rel=0.25)


def test_warm_up_can_be_shorter():
    called = []
    median_time(lambda: called.append(time.sleep(0.01)), CPU, budget_s=0.05, warmup_s=0.01)
    assert len(called) <= 1 + 2 + 2 * LEAST
