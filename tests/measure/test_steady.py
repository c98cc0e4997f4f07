"""Steps timed between other work."""

import time
from types import SimpleNamespace

import pytest
import torch

from mpx.measure.steady import SteadySteps
from mpx.measure.windows import Clock


def test_a_wait_outside_the_stretches_counts_for_none():
    waits = [(0.0, 100.0)]

    def take_waits():
        taken = waits[:]
        waits.clear()
        return taken

    loader = SimpleNamespace(take_waits=take_waits)
    steady = SteadySteps(Clock(torch.device("cpu")), SimpleNamespace(train_dataloader=loader))
    for _ in range(2):
        steady.begin()
        asked = time.perf_counter()
        time.sleep(0.02)
        there = time.perf_counter()
        waits.append((asked, there))
        steady.step()
        steady.end()
        waits.append((0.0, 100.0))
    milliseconds, waited = steady.typical("resident")
    assert waited == pytest.approx(20, abs=15)
    assert waited <= milliseconds
