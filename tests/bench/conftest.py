import pytest
from made_clock import clock

from mpx.bench.kernels import work
from mpx.measure import timing


@pytest.fixture
def hurried(monkeypatch):
    """Timing that takes no time, where a test is about what is measured and not about how long it takes."""
    monkeypatch.setattr(work, "WARMUP_S", 1e-4)
    monkeypatch.setattr(timing, "SAMPLE_S", 1e-4)


__all__ = ["clock", "hurried"]  # the fixtures
