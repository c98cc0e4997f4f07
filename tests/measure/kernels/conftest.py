import pytest

from mpx.measure import timing
from mpx.measure.kernels import work


@pytest.fixture
def hurried(monkeypatch):
    """Timing that takes no time, where a test is about what is measured and not about how long it takes."""
    monkeypatch.setattr(work, "WARMUP_S", 1e-4)
    monkeypatch.setattr(timing, "SAMPLE_S", 1e-4)
