"""A long step shows a bar on a terminal, and nothing elsewhere."""

import io
import sys

import pytest
import torch
from torch import nn

from mpx.sparsity.permutation import permute_model
from mpx.system.printing import track


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)], ids=["terminal", "file"]
)
def test_only_a_terminal_shows_a_bar(monkeypatch, stream, shown):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(track(iter("abc"), "reading letters", 3)) == ["a", "b", "c"]
    assert ("reading letters" in stream.getvalue()) is shown
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    assert permute_model(model, torch.randn(2, 16), work=1e6, progress=True).reason is None
    assert ("permuting channels" in stream.getvalue()) is shown
