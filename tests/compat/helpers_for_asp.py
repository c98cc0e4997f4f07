"""Small models and steps for the tests of mpx.compat.asp; no tests."""

import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import ASP

APEX_NETWORKS = 36  # in apex's permutation tests


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.conv = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        return self.head(F.relu(self.bn(self.conv(F.relu(self.stem(x))))).mean((2, 3)))


def perceptron(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def pruned(model, optimizer=None, **arguments):
    pruning = ASP.init_model_for_pruning(model, **({"verbosity": 0, "allow_permutation": False} | arguments))
    if optimizer is not None:
        ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()
    return pruning


def train(model, optimizer, steps=3, closure=False):
    for seed in range(steps):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))

        def loss(x=x):
            optimizer.zero_grad()
            value = F.cross_entropy(model(x.to(next(model.parameters()))).float(), torch.arange(8))
            value.backward()
            return value

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


def assert_held(pruning, *optimizers):
    """Weights and optimizer state are +0 where pruned, and some others are not."""
    masks = pruning.masks
    assert masks.active
    assert masks.verify(optimizers) == []
    for weight in masks.pruned:
        away = ~masks.masks[weight.name]
        assert away.any()
        values = weight.parameter.detach()
        assert not values[away].signbit().any()
        assert values[~away].ne(0).float().mean() > 0.5
