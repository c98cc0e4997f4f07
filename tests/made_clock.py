"""A clock that only tests move, so that what they time takes as long on a busy machine."""

import pytest

from mpx.measure import windows


class Clock:
    """In place of the module `time` where it is used."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(windows, "time", found)
    return found
