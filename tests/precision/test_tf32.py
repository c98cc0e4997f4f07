"""Filling up channels with zeros changes no result."""

import pytest
import torch
from torch import nn

from mpx.precision.switches import AlignedChannels


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 8, 3, padding=1, stride=2),
        nn.Conv1d(5, 8, 3),
        nn.Conv2d(6, 6, 3, groups=2),
        nn.Conv3d(2, 4, 2),
    ],
)
def test_same_results_and_gradients(layer):
    torch.manual_seed(0)
    x = torch.randn(2, layer.in_channels, *[9] * (layer.weight.dim() - 2))
    plain = layer(x)
    plain.square().sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    with AlignedChannels():
        out = layer(x)
    out.square().sum().backward()
    assert torch.allclose(out, plain, atol=1e-6)
    assert torch.allclose(layer.weight.grad, expected, rtol=1e-4, atol=1e-4)
    assert layer.weight.grad.shape == layer.weight.shape
