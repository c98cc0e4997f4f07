"""The blocks of a network are layers in lists whose weights nothing else uses."""

import sharded_net
import torch
from torch import nn
from torchvision.models import resnet18

from mpx.models.blocks import blocks


def names(model, x):
    found = blocks(model, x)
    return [name for name, layer in model.named_modules() if any(layer is block for block in found)]


def test_layers_that_share_weights_or_are_not_called_are_none():
    model = sharded_net.Net((1, 8, 8), 10)
    assert names(model, torch.ones(1, 1, 8, 8)) == ["blocks.0", "blocks.1", "tail.0", "tail.2", "tail.4"]
    assert model.training
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_lists_in_lists():
    model = resnet18()
    statistics = model.bn1.running_mean.clone()
    assert names(model, torch.ones(1, 3, 32, 32)) == [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    assert torch.equal(model.bn1.running_mean, statistics)


def test_a_weight_that_is_also_used_outside():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            assert self.layers[1].weight.shape == (4, 4)
            return x + self.layers[0].weight.sum()

    assert names(Net(), torch.ones(1, 4)) == ["layers.1"]
