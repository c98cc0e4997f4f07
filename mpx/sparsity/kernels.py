"""Whether PyTorch has a sparse kernel for a pruned weight on this device, and if not, why."""

import torch

from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern

MULTIPLES = {"fp16": 16, "bf16": 16, "int8": 32, "fp8_e4m3": 32}  # rows and columns must be multiples of this, by number format
HARDWARE_PATTERNS = ("2of4", "2of4_2d")
AMPERE = (8, 0)  # the first GPUs with sparse Tensor Cores


def sparse_kernel(weight: Weight, pattern: Pattern, fmt: str, device: torch.device) -> tuple[str | None, str | None]:
    """(the library, None) or (None, the reason). fmt: the number format of the run's matrix products.

    Source: torch.sparse.to_sparse_semi_structured with cuSPARSELt, which needs CUDA and two dimensions and has no FP32.
    """
    reason = (
        unsupported_pattern(pattern.name) or _unsupported_layer(weight) or unsupported_device(device) or _unsupported_operand(weight, fmt)
    )
    return (None, reason) if reason else ("cuSPARSELt", None)


def unsupported_pattern(name: str) -> str | None:
    return None if name in HARDWARE_PATTERNS else f"no hardware is faster with {name}"


def _unsupported_layer(weight: Weight) -> str | None:
    return None if weight.type == "Linear" else f"PyTorch has sparse kernels for Linear, not for {weight.type}"


def unsupported_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "needs a CUDA device"
    return unsupported_gpu(device)


def unsupported_gpu(device: torch.device) -> str | None:
    if torch.cuda.get_device_capability(device) < AMPERE:
        return f"{torch.cuda.get_device_name(device)} has no sparse Tensor Cores"
    return None if torch.backends.cusparselt.is_available() else "this PyTorch was built without cuSPARSELt"


def _unsupported_operand(weight: Weight, fmt: str) -> str | None:
    if fmt not in MULTIPLES:
        return f"cuSPARSELt has no {fmt}"
    (rows, columns), multiple = weight.parameter.shape, MULTIPLES[fmt]
    return f"{rows}×{columns}: {fmt} needs multiples of {multiple}" if rows % multiple or columns % multiple else None
