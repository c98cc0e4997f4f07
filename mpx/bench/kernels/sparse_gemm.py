"""2:4 products through cuSPARSELt, called as PyTorch's sparse tensors call it.

cuSPARSELt multiplies a compressed weight by dense activations, weight first, so that the result is transposed. Transposing it back costs
more than it gains. The fastest algorithm depends on shapes and layouts of the operands, so a search is valid for these alone.
Source: aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp.
"""

import torch

from mpx.measure.matmul import Product, random_matrix
from mpx.precision.formats import FORMATS
from mpx.private.torch_kernels import compress_2of4, fastest_mm_2of4, mm_2of4
from mpx.sparsity.kernels import unsupported_device
from mpx.sparsity.patterns import mask_2of4

FORMATS_2OF4 = ("fp16", "bf16", "fp8_e4m3", "int8")
RESULT_IN = {"int8": torch.int32, "fp8_e4m3": torch.bfloat16}  # as dense products; int8 would overflow


def missing(fmt: str, device: torch.device) -> str | None:
    """Why there is no 2:4 product in `fmt` on `device`, or None where there is one."""
    return unsupported_device(device) if fmt in FORMATS_2OF4 else f"cuSPARSELt has no {fmt}"


def sparse_linear(fmt: str, tokens: int, outputs: int, inputs: int, device: torch.device, *, search: bool) -> Product:
    """a: the pruned weight [outputs, inputs], zeros included. b: activations [inputs, tokens], read transposed. Result [outputs, tokens].

    search: let cuSPARSELt search for its fastest algorithm on these operands.
    """
    weight = random_matrix(fmt, (outputs, inputs), device, seed=1)
    weight = weight * mask_2of4(weight.float() if fmt == "int8" else weight)
    x = random_matrix(fmt, (tokens, inputs), device, seed=0)
    if fmt.startswith("fp8"):
        weight, x = weight.to(FORMATS[fmt].dtype), x.to(FORMATS[fmt].dtype)
    packed, b, out = compress_2of4(weight), x.t(), RESULT_IN.get(fmt)
    chosen = fastest_mm_2of4(packed, b, out) if search else {}
    return Product(fmt, weight, b, lambda: mm_2of4(packed, b, out, **chosen))
