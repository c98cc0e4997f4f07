"""Whether mpx.deploy can serve a layer by a 2:4 kernel on this device, and if not, why."""

import torch
from torch import nn

from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern

# rows and columns must be multiples of this, by number format
MULTIPLES = {"fp16": 16, "bf16": 16, "int8": 32}
_NO_SCALE = "PyTorch's 2:4 products of FP8 take no scale"
NO_2OF4 = {
    "fp32": "cuSPARSELt has no fp32",
    "tf32": "cuSPARSELt has no tf32",
    "fp8": _NO_SCALE,  # mpx.deploy's name
    "fp8_e4m3": _NO_SCALE,
}
HARDWARE_PATTERNS = ("2of4", "2of4_2d")
AMPERE = (8, 0)  # the first GPUs with sparse Tensor Cores


def sparse_kernel(
    weight: Weight, pattern: Pattern, fmt: str, device: torch.device
) -> tuple[str | None, str | None]:
    """(the library, None) or (None, the reason). fmt: the number format of the run's matrix products."""
    reason = (
        unsupported_pattern(pattern.name)
        or unsupported_layer(weight.module)
        or unsupported_device(device)
        or NO_2OF4.get(fmt)
        or misfit(weight.parameter.shape, MULTIPLES[fmt], fmt)
    )
    return (None, reason) if reason else ("cuSPARSELt", None)


def unsupported_pattern(name: str) -> str | None:
    return None if name in HARDWARE_PATTERNS else f"no hardware is faster with {name}"


def unsupported_layer(layer: nn.Module) -> str | None:
    """Why no product of rows can replace the layer; None if one can."""
    name = type(layer).__name__
    if isinstance(layer, nn.RNNBase):
        return f"cuDNN computes {name} in one call, which takes dense weights only"
    if isinstance(layer, nn.MultiheadAttention):
        return f"{name} multiplies its weights itself"
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        return f"no kernel for {name}"
    if type(layer) not in (nn.Linear, nn.Conv2d):
        kind = "Linear" if isinstance(layer, nn.Linear) else "Conv2d"
        return f"its class is derived from {kind} and may do more"
    if isinstance(layer, nn.Conv2d):
        if layer.groups > 1:
            return "no kernel for a convolution in groups"
        if layer.dilation != (1, 1) or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return "no kernel for a convolution with dilation or other padding than zeros"
    return None


def unsupported_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "needs a CUDA device"
    if torch.cuda.get_device_capability(device) < AMPERE:
        return f"{torch.cuda.get_device_name(device)} has no sparse Tensor Cores"
    return None if torch.backends.cusparselt.is_available() else "this PyTorch was built without cuSPARSELt"


def misfit(shape: torch.Size, multiple: int, fmt: str) -> str | None:
    """Why a weight of this shape does not fit a product in `fmt`; None if it does. A filter's values are one
    row.
    """
    rows, columns = shape[0], shape[1:].numel()
    return (
        f"{rows}×{columns}: {fmt} needs multiples of {multiple}"
        if rows % multiple or columns % multiple
        else None
    )
