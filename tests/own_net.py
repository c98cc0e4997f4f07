"""A network of the user's own, which mpx.deploy imports where a test names it."""

import torch
from torch import nn


class BatchNet(nn.Module):
    """Its norm takes mean and variance from the batch at hand, also in evaluation mode."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.norm = nn.BatchNorm2d(1, track_running_stats=False)
        self.out = nn.Linear(input_shape[1] * input_shape[2], num_classes)

    def forward(self, x):
        return self.out(self.norm(x).flatten(1))


class MovingNet(nn.Module):
    """It takes a mean off, which moves in evaluation, too."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.out = nn.Linear(input_shape[1] * input_shape[2], num_classes)

    def forward(self, x):
        self.mean.lerp_(x.mean(), 0.1)
        return self.out((x - self.mean).flatten(1))


class Net(nn.Module):
    """Attention over the rows of an image. Its layers' fast path reads their weights."""

    def __init__(self, input_shape, num_classes, width=32):
        super().__init__()
        self.embed = nn.Linear(input_shape[2], width)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True), 2)
        self.out = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.out(self.encoder(self.embed(x[:, 0])).mean(1))
