"""Whether PyTorch could multiply a pruned weight with a sparse kernel on this device, and if not, why not."""

import torch

from mpx.sparsity.layers import Weight
from mpx.sparsity.patterns import Pattern

MULTIPLES = {"fp16": 16, "bf16": 16, "int8": 32, "fp8_e4m3": 32}  # of rows and columns, by number format
HARDWARE = ("2of4", "2of4_2d")  # patterns, by name
AMPERE = (8, 0)  # the first GPUs with sparse Tensor Cores


def sparse_kernel(weight: Weight, pattern: Pattern, fmt: str, device: torch.device) -> tuple[str | None, str | None]:
    """(the library, None) or (None, the reason). fmt: the number format in which the run multiplies matrices.

    Source: torch.sparse.to_sparse_semi_structured and its back end cuSPARSELt: CUDA, two dimensions, no FP32.
    """
    reason = _never(weight, pattern) or _not_here(device) or _not_so(weight, fmt)
    return (None, reason) if reason else ("cuSPARSELt", None)


def _never(weight: Weight, pattern: Pattern) -> str | None:
    if pattern.name not in HARDWARE:
        return f"no hardware is faster with {pattern.name}"
    if weight.type != "Linear":
        return f"PyTorch has sparse kernels for Linear, not for {weight.type}"
    return None


def _not_here(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"needs a CUDA device, this is a {device.type}"
    if torch.cuda.get_device_capability(device) < AMPERE:
        return f"{torch.cuda.get_device_name(device)} has no sparse Tensor Cores"
    return None if torch.backends.cusparselt.is_available() else "this PyTorch was built without cuSPARSELt"


def _not_so(weight: Weight, fmt: str) -> str | None:
    if fmt not in MULTIPLES:
        return f"cuSPARSELt has no {fmt}"
    (rows, columns), of = weight.parameter.shape, MULTIPLES[fmt]
    return f"{rows}×{columns}: {fmt} needs multiples of {of}" if rows % of or columns % of else None
