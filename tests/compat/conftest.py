"""A forgotten initialize must not reach the next test."""

import pytest

from mpx.compat import amp


@pytest.fixture(autouse=True)
def _fresh_amp(monkeypatch):
    monkeypatch.setattr(amp._amp_state, "session", None)
