"""Small models and training steps for the tests of mpx.compat.amp."""

import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import amp

LEVELS = ["O0", "O1", "O2", "O3"]
DYNAMIC = ["O1", "O2"]


class Weights(nn.Module):
    """A linear function of an FP32 weight and an FP16 one: gradients are the same small numbers in every
    format.
    """

    def __init__(self, first):
        super().__init__()
        self.weight0 = nn.Parameter(first + torch.arange(2, dtype=torch.float32))
        self.weight1 = nn.Parameter(1 + first + torch.arange(2, dtype=torch.float16))

    def forward(self, x):
        return (x * self.weight0.float() * self.weight1.float()).sum()


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.factor = nn.Parameter(torch.randn(1))

    def forward(self, x):
        return self.bn(F.relu(self.conv(x * self.factor)))


def perceptron(level, seed=0, **arguments):
    """(model, optimizer), initialised: 4 inputs, 3 outputs, SGD with momentum."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return amp.initialize(model, optimizer, opt_level=level, **({"verbosity": 0} | arguments))


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 4, generator=generator), torch.randint(0, 3, (16,), generator=generator)


def backward(loss, optimizers, **arguments):
    with amp.scale_loss(loss, optimizers, **arguments) as scaled_loss:
        scaled_loss.backward()


def train_step(model, optimizer, seed=0, factor=1.0):
    x, y = batch(seed)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y) * factor
    backward(loss, optimizer)
    optimizer.step()
    return loss.item()


def snapshot(model, optimizer):
    """Copies of everything that a step changes."""
    stepped = list(amp.master_params(optimizer))
    state = [
        value
        for p in stepped
        for value in optimizer.state.get(p, {}).values()
        if isinstance(value, torch.Tensor)
    ]
    return [tensor.detach().clone() for tensor in [*model.parameters(), *stepped, *state]]


def same(before, after):
    return len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
