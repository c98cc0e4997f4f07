"""amp.init, and the handle that it and O1 give scripts."""

import pytest
import torch
from torch import nn

from mpx.compat import amp


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_handle_ends_the_casts_of_o1():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0**-13)
    x = torch.full((1, 1), 2.0**-13)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=1.0), verbosity=0)
    handle = amp._amp_state.handle
    assert model(x).item() == 0
    handle._deactivate()
    with amp.scale_loss(model(x).sum(), optimizer) as scaled_loss:
        assert scaled_loss.item() == 2.0**-10
        scaled_loss.backward()
    assert model.weight.grad.item() == 2.0**-13


def test_init_casts_everywhere_until_it_is_deactivated():
    x = torch.full((1, 1), 2.0**-13)
    double = amp.half_function(lambda a: a * 2.0**-13)
    handle = amp.init()
    assert amp._amp_state.handle is handle
    try:
        assert (x @ x).item() == double(x).item() == 0
    finally:
        handle._deactivate()
    handle._deactivate()
    assert (x @ x).item() == double(x).item() == 2.0**-26
