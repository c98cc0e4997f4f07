from contextlib import contextmanager

import pytest
import torch
from made_clock import clock

from mpx.bench import work
from mpx.measure import timing


@contextmanager
def hurry():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "WARMUP_S", 1e-4)
        patch.setattr(timing, "SAMPLE_S", 1e-4)
        yield


@pytest.fixture
def hurried():
    """Timing that takes no time, where a test is about what is measured and not about how long it takes."""
    with hurry():
        yield


@pytest.fixture(scope="module")
def measured():
    """measured(module, size) -> its rows on a CPU, as `hurried`."""

    def rows(module, size):
        with hurry():
            return list(module.measure(torch.device("cpu"), size, lambda part: None))

    return rows


__all__ = ["clock", "hurried", "measured"]  # the fixtures
