"""Steps that do more than launch kernels are found out."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from mpx.acceleration.repeatable import Repeatable


class Net(nn.Module):
    def __init__(self, habit):
        super().__init__()
        self.layer, self.norm, self.habit, self.count = nn.Linear(4, 4), nn.BatchNorm1d(4), habit, 0
        self.register_buffer("average", torch.zeros(4))
        self.best = math.nan

    def forward(self, x):
        self.habit(self)
        return self.norm(self.layer(x))


def replace(net):
    net.average = net.average + 1


def count(net):
    net.count += 1


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        (lambda net: net.average.add_(1), None),
        (lambda net: random.random(), "the model draws random numbers on the CPU"),
        (lambda net: np.random.rand(), "the model draws random numbers on the CPU"),
        (lambda net: torch.rand(()), "the model draws random numbers on the CPU"),
        (replace, "the model changes its own attribute .average in Python"),
        (count, "the model changes its own attribute .count in Python"),
    ],
)
def test_reason(habit, reason):
    net = Net(habit)
    with Repeatable(net) as seen:
        net(torch.ones(2, 4)).sum().backward()
    assert seen.reason == reason
