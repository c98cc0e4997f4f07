"""Timing against a known truth: calls that take a known time by a clock of their own."""

import pytest
import torch

from mpx.measure.timing import MAX_SAMPLES, MIN_SAMPLES, elapsed, median_time

CPU = torch.device("cpu")


def test_median_of_a_call(clock):
    timing = median_time(lambda: clock.sleep(0.01), CPU, budget_s=0.2)
    assert timing.seconds == pytest.approx(0.01)
    assert timing.calls == 2
    assert timing.samples == 10


@pytest.mark.parametrize(("budget_s", "samples"), [(0.0, MIN_SAMPLES), (100.0, MAX_SAMPLES)])
def test_samples_have_bounds(clock, budget_s, samples):
    assert median_time(lambda: clock.sleep(0.01), CPU, budget_s=budget_s).samples == samples


def test_one_slow_call_does_not_move_the_median(clock):
    calls = iter(range(10_000))
    found = median_time(lambda: clock.sleep(0.5 if next(calls) == 30 else 0.005), CPU, budget_s=0.3)
    assert found.seconds == pytest.approx(0.005)
    assert next(calls) > 31


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


def test_by_the_real_clock():
    assert elapsed(lambda: sum(range(100_000)), CPU, 5) > 0


def test_warm_up_can_be_shorter(clock):
    called = []
    median_time(lambda: called.append(clock.sleep(0.01)), CPU, budget_s=0.05, warmup_s=0.01)
    assert len(called) <= 1 + 2 + 2 * MIN_SAMPLES
