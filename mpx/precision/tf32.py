"""Convolutions that cuDNN would not run in TF32 although it may."""

from typing import Any

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

ALIGNED = 4  # channels: 16 bytes of FP32, which cuDNN's TF32 kernels read at once
CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class AlignedChannels(TorchFunctionMode):
    """Under this mode an image's 3 channels are filled up with zeros to 4: the same result, on Tensor Cores in the backward pass too.

    Without it cuDNN computes the weight gradient of a network's first layer in FP32 (seen with cuDNN 9.19 on an H200, experiments/audit).
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in CONVOLUTIONS or len(args) < 2:
            return func(*args, **(kwargs or {}))
        x, weight, *others = args
        missing, dimensions = -weight.shape[1] % ALIGNED, weight.dim() - 2
        if missing and x.dim() == weight.dim() and x.shape[1] == weight.shape[1]:  # not for groups, nor for single samples
            x, weight = (pad(value, (0, 0) * dimensions + (0, missing)) for value in (x, weight))
        return func(x, weight, *others, **(kwargs or {}))
