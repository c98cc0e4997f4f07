import pytest

from mpx.measure import timing


@pytest.fixture
def hurried(monkeypatch):
    """Timing that takes no time, where a test is about what is measured and not about how long it takes."""
    monkeypatch.setattr(timing, "WARMUP_S", 1e-4)
    monkeypatch.setattr(timing, "SAMPLE_S", 1e-4)
