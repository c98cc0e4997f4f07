"""A Triton kernel that reads a weight once and writes its 2:4 mask and the pruned weight. Training has mpx/sparsity/mask_launch.py.

The mask equals that of mpx.sparsity.patterns.mask_2of4 bit for bit. The tests run the kernel on a CPU in Triton's interpreter
(TRITON_INTERPRET=1). The language: https://triton-lang.org.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mpx.sparsity.mask_launch import EXACT, keep_of_four, magnitude


@triton.jit
def mask_kernel(weight, mask, pruned, groups, GROUPS: tl.constexpr):
    """weight, pruned: [groups · 4]; mask: bytes of that shape. Each program takes GROUPS groups of four."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    places = group[:, None] * 4 + tl.arange(0, 4)[None, :]  # [GROUPS, 4]
    inside = (group < groups)[:, None]
    values = tl.load(weight + places, mask=inside, other=0.0)
    even, odd = tl.split(tl.reshape(magnitude(values), (GROUPS, 2, 2)))  # places 0 and 2, 1 and 3
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    keep0, keep1, keep2, keep3 = keep_of_four(w0, w1, w2, w3, 2)
    keep = tl.reshape(tl.join(tl.join(keep0, keep2), tl.join(keep1, keep3)), (GROUPS, 4))
    tl.store(mask + places, keep, mask=inside)
    tl.store(pruned + places, tl.where(keep != 0, values, 0.0).to(values.dtype), mask=inside)


_tuned = triton.autotune(
    configs=[triton.Config({"GROUPS": groups}, num_warps=warps) for groups in (256, 512, 1024, 2048) for warps in (4, 8)], key=["groups"]
)(mask_kernel)


def mask_and_prune(weight: Tensor, *, groups_each: int | None = None) -> tuple[Tensor, Tensor]:
    """(mask, pruned weight) of a contiguous FP32, FP16 or BF16 weight [out, in] with `in` a multiple of 4.

    groups_each: groups of four per program; None times several choices once per size and keeps the fastest.
    Raises ValueError for any other weight.
    """
    if weight.dim() != 2 or weight.shape[1] % 4 or not weight.is_contiguous():
        raise ValueError(f"needs a contiguous weight [out, in] with in a multiple of 4, got {tuple(weight.shape)}")
    mask, pruned = torch.empty_like(weight, dtype=torch.bool), torch.empty_like(weight)
    groups = weight.numel() // 4
    arguments = weight, mask.view(torch.int8), pruned, groups
    if groups_each is None:
        _tuned[lambda meta: (triton.cdiv(groups, meta["GROUPS"]),)](*arguments, **EXACT)
    else:
        mask_kernel[(triton.cdiv(groups, groups_each),)](*arguments, GROUPS=groups_each, **EXACT)
    return mask, pruned
