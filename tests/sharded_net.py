"""A network of the user's own, which tests shard over two processes."""

import torch
from torch import nn


class Net(nn.Module):
    """A recurrent layer, layers that are called in order, two that share a weight, one that is never called itself, an output that is a
    view and changed in place, and 11 rows, which two processes cannot share evenly."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.rnn = nn.LSTM(8, 32, batch_first=True)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True) for _ in range(2)])
        self.tied = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)])
        self.tied[1].weight = self.tied[0].weight
        self.borrowed = nn.ModuleList([nn.Linear(32, 32)])
        self.tail = nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True), nn.Linear(32, 11), nn.Tanh(), nn.Linear(11, num_classes))

    def forward(self, x):
        x, _ = self.rnn(x.flatten(1, 2))
        for block in self.blocks:
            x = block(x)
        x = self.tied[1](torch.tanh(self.tied[0](x))) * self.scale
        x = torch.tanh(nn.functional.linear(x, self.borrowed[0].weight))
        return self.tail(x).mean(1)
