"""2:4 products of PyTorch's cuSPARSELt back end, for which it has no public API that takes a searched algorithm (PyTorch 2.11 to 2.15).

cuSPARSELt multiplies a compressed weight by dense activations, weight first. The fastest algorithm depends on the shapes and layouts of all
operands, so a search is valid for these alone. Source: aten/src/ATen/native/sparse/cuda/cuSPARSELtOps.cpp.
"""

import torch
from torch import Tensor

ALGORITHM = ("alg_id", "split_k", "split_k_mode")


def compress(weight: Tensor) -> Tensor:
    """The nonzero values and their places of a weight [out, in] that has the 2:4 pattern."""
    return torch._cslt_compress(weight)


def product(packed: Tensor, b: Tensor, bias: Tensor | None, algorithm: list[int], *, transposed: bool) -> Tensor:
    """weight [out, in] · b [in, n] + bias [out], as [out, n], or written transposed as [n, out]."""
    return torch._cslt_sparse_mm(packed, b, bias, transpose_result=transposed, **dict(zip(ALGORITHM, algorithm, strict=True)))


def search(packed: Tensor, b: Tensor, bias: Tensor | None, *, transposed: bool) -> list[int]:
    """The fastest algorithm of such a product, by PyTorch's search or, where it is missing, by its predecessor, which finds no split."""
    library = getattr(torch._C, "_cusparselt", None)
    if hasattr(library, "mm_search"):
        return list(library.mm_search(packed, b, bias, None, None, transposed)[: len(ALGORITHM)])  # neither alpha nor another format
    return [torch._cslt_sparse_mm_search(packed, b, bias, None, None, transposed), 1, -1]
