"""Private API of PyTorch 2.11 to 2.15: single kernels, and what the hardware has for them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._triton import has_triton

__all__ = ["has_triton"]  # whether Triton is installed and has a device, as torch.compile asks
# bytes behind a packed 2:4 weight: at least, and for each row; twice what was seen to be read
BEHIND, ROW_BEHIND = 4096, 16
# the product of two int8 matrices in int32; that of public functions is int8
int_mm = torch._int_mm
# (gradients of one device and dtype, found_inf, inverse_scale): multiplies them, and sets found_inf to 1
# where one is infinite or NaN; torch.amp.GradScaler does so for all gradients of an optimizer only
unscale_ = torch._amp_foreach_non_finite_check_and_unscale_
# (scale, clean steps, found_inf, growth, backoff, interval): adjusts the loss scale and the count of clean
# steps as torch.amp.GradScaler does, without reading them back from the device
update_scale_ = torch._amp_update_scale_


def scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool, bias: Tensor | None = None
) -> Tensor:
    """(a · scale_a) @ (b · scale_b) + bias of FP8 matrices, in BF16, as is the bias. fast: sums may have
    fewer bits.

    torch.nn.functional.scaled_mm is a newer operator, which the FLOP counter does not know.
    """
    return torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=fast
    )


def compress_2of4(weight: Tensor) -> Tensor:
    """A 2:4 weight [out, in] packed for cuSPARSELt, with memory behind it. Publicly, only whole sparse
    tensors hold one.

    cuSPARSELt 0.8 reads whole tiles of metadata, of up to 128 columns. If `in` is no multiple of that, it
    reads 8 bytes a row, or up to 2 KiB, past the size that it asks for: an illegal access where that is the
    end of the allocator's memory.
    """
    packed = torch._cslt_compress(weight)
    behind = max(BEHIND, ROW_BEHIND * len(weight))
    return pad(packed.flatten(), (0, behind // weight.element_size()))[: packed.numel()].view_as(packed)


def mm_2of4(
    packed: Tensor, b: Tensor, out_dtype: torch.dtype | None, *,
    bias: Tensor | None = None, scale: Tensor | None = None, transposed: bool = False, **algorithm: int,
) -> Tensor:  # fmt: skip
    """The product of a packed weight [out, in] and a dense matrix [in, n], plus a bias [out]: [out, n], or
    written transposed as [n, out].

    out_dtype: for operands of 8 bits. scale: FP32 [out], by which the product's rows are multiplied before
    the bias. Publicly, sparse tensors choose the algorithm.
    """
    given: dict[str, Any] = dict(algorithm) | ({} if scale is None else {"alpha": scale})
    return torch._cslt_sparse_mm(
        packed, b, bias=bias, out_dtype=out_dtype, transpose_result=transposed, **given
    )


def fastest_mm_2of4(packed: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> dict[str, int]:
    """The arguments of `mm_2of4` that choose cuSPARSELt's fastest algorithm, from PyTorch's search or, in
    2.11, from its predecessor.
    """
    library: Any = getattr(torch._C, "_cusparselt", None)
    if hasattr(library, "mm_search"):
        bias = alpha = None
        # not transposed
        algorithm, split_k, split_k_mode, _ = library.mm_search(packed, b, bias, alpha, out_dtype, False)
        return {"alg_id": algorithm, "split_k": split_k, "split_k_mode": split_k_mode}
    return {"alg_id": torch._cslt_sparse_mm_search(packed, b, out_dtype=out_dtype)}


def skips_on_the_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer skips a step on the device where its `found_inf` says so. GradScaler asks for the
    same attribute.
    """
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def values_of_sparse(gradient: Tensor) -> Tensor:
    """The values of a sparse tensor. The public `values` needs one that is coalesced, which copies it."""
    return gradient._values()


def cpu_multiplies_bf16() -> bool:
    """Whether oneDNN multiplies BF16 on this CPU at all. With AVX-512 it does, even without instructions for
    it.
    """
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()
