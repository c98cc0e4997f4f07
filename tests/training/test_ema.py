"""Averages of the weights bring the statistics of batch norms that belong to them."""

import pytest
import torch
from torch import nn

from mpx.training.ema import Ema


def averaging(decay, model):
    """(module, ema), begun from the weights of `model`."""
    module = nn.Module()
    module.model = model
    ema = Ema(decay, model)
    ema.on_fit_start(None, module)
    return module, ema


@pytest.fixture
def drifting():
    """(module, ema): a linear layer and a batch norm, whose weights grew fourfold in the course of 40
    averaged steps.
    """
    torch.manual_seed(0)
    module, ema = averaging(0.9, nn.Sequential(nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4, momentum=0.5)))
    ema.steps.fill_(1000)  # the decay is all of 0.9 then
    first, seen = module.model[0].weight.detach().clone(), []
    for step in range(40):
        with torch.no_grad():
            module.model[0].weight.copy_(first * (1 + step / 13))
        module.model(torch.randn(256, 8))
        seen.append(module.model[1].running_var.clone())
        ema.update(None)
    return module, ema, seen


def test_statistics_are_averaged_as_weights_are(drifting):
    _, ema, seen = drifting
    expected = torch.ones(4)
    for variance in seen:
        expected = 0.9 * expected + 0.1 * variance
    torch.testing.assert_close(ema.averages["1.running_var"], expected)
    assert set(ema.averages) == {"0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var"}


def test_the_average_is_normalised_by_its_own_statistics(drifting):
    module, ema, _ = drifting
    trained = {name: value.clone() for name, value in module.model.state_dict().items()}
    newest = trained["1.running_var"]
    ema.on_test_start(None, module)
    module.model.eval()
    x = torch.randn(20_000, 8)
    spread = module.model(x).std(dim=0)
    # the average, normalised by what the newest weights saw
    wrong = module.model[0](x).std(dim=0) / newest.sqrt()
    assert (spread - 1).abs().max() < 0.1
    assert (wrong - 1).abs().min() > 0.1
    ema.on_test_end(None, module)
    torch.testing.assert_close(dict(module.model.state_dict()), trained, rtol=0, atol=0)


def weight(value):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer
