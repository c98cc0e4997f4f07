"""TF32 for convolutions that cuDNN would compute in FP32."""

from typing import Any

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

ALIGNED = 4  # channels; cuDNN's TF32 kernels read 16 bytes at once
CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class AlignedChannels(TorchFunctionMode):
    """Under this mode, channels of convolutions are padded with zeros to a multiple of 4, such as an image's 3, so that the backward pass
    runs on Tensor Cores, too.

    Otherwise cuDNN computes the weight gradient of a network's first layer in FP32 (experiments/audit).
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func not in CONVOLUTIONS or len(args) < 2:
            return func(*args, **(kwargs or {}))
        x, weight, *others = args
        missing, dimensions = -weight.shape[1] % ALIGNED, weight.dim() - 2
        if missing and x.dim() == weight.dim() and x.shape[1] == weight.shape[1]:  # neither groups nor single samples
            x, weight = (pad(value, (0, 0) * dimensions + (0, missing)) for value in (x, weight))
        return func(x, weight, *others, **(kwargs or {}))
