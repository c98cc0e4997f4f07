"""Masks: which values of a weight a pattern keeps. Pure functions of one tensor."""

import torch
from torch import Tensor

GROUP, KEEP = 4, 2  # 2:4, the pattern that sparse Tensor Cores run


def mask_2of4(weight: Tensor) -> Tensor:
    """Keep the 2 of every 4 neighbours along dimension 1 (the inputs) that are largest in magnitude.

    weight: [out, in, ...] with in % 4 == 0, any memory layout: Linear [out, in], Conv [out, in/groups, k...], LSTM [4·hidden, in].
    Returns a bool tensor of the same shape. Among equal magnitudes the earlier input stays, so the mask does not depend on the device.
    Source: Mishra et al., Accelerating Sparse Deep Neural Networks, arXiv:2104.08378.
    """
    if weight.dim() < 2 or weight.shape[1] % GROUP:
        raise ValueError(f"2of4 needs a weight [out, in, ...] with in divisible by {GROUP}, got {tuple(weight.shape)}")
    groups = weight.detach().abs().transpose(1, -1).unflatten(-1, (-1, GROUP))  # [out, ..., in/4, 4]
    mine, other = groups.unsqueeze(-1), groups.unsqueeze(-2)
    earlier = torch.ones(GROUP, GROUP, dtype=torch.bool, device=weight.device).tril(-1)
    beaten_by = ((other > mine) | ((other == mine) & earlier)).sum(-1)
    return (beaten_by < KEEP).flatten(-2).transpose(1, -1).contiguous()


def is_2of4(weight: Tensor) -> bool:
    """Whether every group of 4 along dimension 1 holds at most 2 non-zero values."""
    return bool(((weight.detach() != 0).transpose(1, -1).unflatten(-1, (-1, GROUP)).sum(-1) <= KEEP).all())


def kept_magnitude(weight: Tensor, mask: Tensor) -> float:
    """Share of Σ|w| that the mask keeps, 0 to 1; 1 for an all-zero weight."""
    magnitude = weight.detach().abs().double()
    total = magnitude.sum()
    return float((magnitude * mask).sum() / total) if total > 0 else 1.0
