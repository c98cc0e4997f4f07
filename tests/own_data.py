"""Data of the user's own, which `data=custom` imports."""

import torch


def make_data(size=200):
    """Images whose brightness is their class: three pairs of tensors."""
    y = torch.arange(size) % 4
    x = torch.rand(size, 1, 8, 8, generator=torch.Generator().manual_seed(0)) + y[:, None, None, None]
    return (x, y), (x[:40], y[:40]), (x[:40], y[:40])
