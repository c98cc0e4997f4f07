"""N-of-4 masks of many weights in one kernel launch: a Triton kernel reads each weight once, in place, and
writes its mask.

The masks equal those of mpx.sparsity.patterns.NofM(n, 4) bit for bit. A table on the device holds each
weight's address, so a model needs one launch instead of one per weight. A second kernel handles weights whose
groups of four are not contiguous: convolutions that are not channels_last, and widths that are not a multiple
of 4. The tests run the kernels on a CPU in Triton's interpreter (TRITON_INTERPRET=1).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
GROUPS = 1024  # groups of four weights per program
ALIGNED = 16  # bytes: every mask starts at a multiple, and a weight must too for reads of four values at once
# A row of the table: address of the weight, offset of its mask, its first program; numbers of groups, of
# groups per row of inputs ("quads") and of kernel positions; strides of outputs, inputs and positions; number
# of inputs.
FIELDS = tl.constexpr(10)
# the kernels have nothing to fuse, but Triton 3.9 warns without this option
EXACT = {"enable_fp_fusion": False}


@triton.jit
def magnitude(values):
    """|w| in FP32, which is exact and which every GPU can compare. NaN becomes infinity, since comparisons
    with NaN are False.
    """
    found = tl.abs(values.to(tl.float32))
    return tl.where(found == found, found, float("inf"))


@triton.jit
def _beats(a, b):
    """1 where the magnitude a ranks above b. a comes first, so it wins a tie."""
    return (a >= b).to(tl.int32)


@triton.jit
def keep_of_four(w0, w1, w2, w3, N: tl.constexpr):
    """0 or 1 for each of four magnitudes: 1 where fewer than N of the others rank above it. Of equal
    magnitudes the earlier ranks first.
    """
    b01, b02, b03 = _beats(w0, w1), _beats(w0, w2), _beats(w0, w3)
    b12, b13, b23 = _beats(w1, w2), _beats(w1, w3), _beats(w2, w3)
    keep0 = 3 - b01 - b02 - b03 < N
    keep1 = b01 + 2 - b12 - b13 < N
    keep2 = b02 + b12 + 1 - b23 < N
    keep3 = b03 + b13 + b23 < N
    return keep0.to(tl.int8), keep1.to(tl.int8), keep2.to(tl.int8), keep3.to(tl.int8)


@triton.jit
def neighbours_kernel(table, owners, masks, N: tl.constexpr, TYPE: tl.constexpr, GROUPS: tl.constexpr):
    """Masks of weights whose groups of four are contiguous. table: int64 [weights, FIELDS]; owners: each
    program's row in the table.
    """
    row = table + tl.load(owners + tl.program_id(0)) * FIELDS
    weight, mask = tl.load(row).to(tl.pointer_type(TYPE)), masks + tl.load(row + 1)
    group = (tl.program_id(0) - tl.load(row + 2)) * GROUPS + tl.arange(0, GROUPS)
    inside = (group < tl.load(row + 3))[:, None]
    places = group[:, None] * 4 + tl.arange(0, 4)[None, :]  # [GROUPS, 4]
    # not inferred for an address from a table
    source = tl.multiple_of(weight + places, (1, 4 * TYPE.primitive_bitwidth // 8))
    magnitudes = magnitude(tl.load(source, mask=inside, other=0.0))
    even, odd = tl.split(tl.reshape(magnitudes, (GROUPS, 2, 2)))  # places 0 and 2, 1 and 3
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    keep0, keep1, keep2, keep3 = keep_of_four(w0, w1, w2, w3, N)
    keep = tl.reshape(tl.join(tl.join(keep0, keep2), tl.join(keep1, keep3)), (GROUPS, 4))
    tl.store(tl.multiple_of(mask + places, (1, 4)), keep, mask=inside)


@triton.jit
def strided_kernel(table, owners, masks, N: tl.constexpr, TYPE: tl.constexpr, GROUPS: tl.constexpr):
    """Masks of weights [outputs, inputs, positions] with any strides. Neighbouring lanes take neighbouring
    kernel positions.
    """
    row = table + tl.load(owners + tl.program_id(0)) * FIELDS
    weight, mask = tl.load(row).to(tl.pointer_type(TYPE)), masks + tl.load(row + 1)
    # 64-bit divisions are slow
    group = ((tl.program_id(0) - tl.load(row + 2)) * GROUPS + tl.arange(0, GROUPS)).to(tl.int32)
    quads, positions = tl.load(row + 4).to(tl.int32), tl.load(row + 5).to(tl.int32)
    quad = group // positions % quads
    step = tl.load(row + 7)
    first = (
        group // (positions * quads) * tl.load(row + 6)
        + quad * 4 * step
        + group % positions * tl.load(row + 8)
    )
    # inputs left: fewer than 4 in the last group
    left = tl.where(group < tl.load(row + 3), tl.load(row + 9) - quad * 4, 0)
    w0 = magnitude(tl.load(weight + first, mask=left > 0, other=0.0))
    w1 = magnitude(tl.load(weight + first + step, mask=left > 1, other=0.0))
    w2 = magnitude(tl.load(weight + first + 2 * step, mask=left > 2, other=0.0))
    w3 = magnitude(tl.load(weight + first + 3 * step, mask=left > 3, other=0.0))
    keep0, keep1, keep2, keep3 = keep_of_four(w0, w1, w2, w3, N)
    tl.store(mask + first, keep0, mask=left > 0)
    tl.store(mask + first + step, keep1, mask=left > 1)
    tl.store(mask + first + 2 * step, keep2, mask=left > 2)
    tl.store(mask + first + 3 * step, keep3, mask=left > 3)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the indices of its weights, and the offsets of their masks in one buffer of `size`
    bytes.
    """

    places: list[int]
    starts: list[int]
    size: int
    neighbours: bool
    table: Tensor
    owners: Tensor


_launches: dict[tuple, list[Launch]] = {}  # never freed, since a captured CUDA graph keeps reading its table


def masks_by_place(weights: Sequence[Tensor], n: int) -> dict[int, Tensor]:
    """The mask of each weight that the kernels can read, by its index in `weights`, in its shape and memory
    layout.

    The masks of a launch share one buffer. During CUDA graph capture the result is empty for a new set of
    weights, since its table cannot be copied to the device then.
    """
    key = tuple(
        (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype, weight.device) for weight in weights
    )
    if key not in _launches:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return {}
        _launches[key] = _launches_of(weights)
    found: dict[int, Tensor] = {}
    for launch in _launches[key]:
        first = weights[launch.places[0]]
        masks = torch.empty(launch.size, dtype=torch.bool, device=first.device)
        kernel = (neighbours_kernel if launch.neighbours else strided_kernel)[(len(launch.owners),)]
        with torch.cuda.device_of(first):
            kernel(
                launch.table, launch.owners, masks.view(torch.int8), n, TYPES[first.dtype], GROUPS, **EXACT
            )
        for place, start in zip(launch.places, launch.starts, strict=True):
            found[place] = masks.as_strided(weights[place].shape, weights[place].stride(), start)
    return found


def _launches_of(weights: Sequence[Tensor]) -> list[Launch]:
    alike: dict[tuple, list[int]] = defaultdict(list)
    for place, weight in enumerate(weights):
        if readable(weight):
            alike[weight.device, weight.dtype, _contiguous_groups(weight)].append(place)
    return [
        _launch([weights[place] for place in places], places, neighbours=key[-1])
        for key, places in alike.items()
    ]


def _launch(weights: list[Tensor], places: list[int], *, neighbours: bool) -> Launch:
    rows, starts, size = [], [], 0
    programs: list[int] = []
    for weight in weights:
        out, inputs, *kernel = weight.shape
        strides = weight.detach().view(out, inputs, -1).stride()
        quads, positions = triton.cdiv(inputs, 4), prod(kernel)
        groups = out * quads * positions
        rows.append([weight.data_ptr(), size, sum(programs), groups, quads, positions, *strides, inputs])
        starts.append(size)
        programs.append(triton.cdiv(groups, GROUPS))
        size += triton.cdiv(weight.numel(), ALIGNED) * ALIGNED
    owners = torch.arange(len(rows), dtype=torch.int32).repeat_interleave(torch.tensor(programs))
    device = weights[0].device
    return Launch(places, starts, size, neighbours, torch.tensor(rows).to(device), owners.to(device))


def readable(weight: Tensor) -> bool:
    """Whether the kernels can read the weight: FP32, FP16 or BF16, dense in memory, kernel positions a
    constant distance apart.
    """
    if (
        type(weight) not in (Tensor, nn.Parameter)
        or weight.dtype not in TYPES
        or not 0 < weight.numel() < 2**31
    ):
        return False
    if torch.empty_like(weight, device="meta").stride() != weight.stride():
        return False
    try:
        weight.detach().view(*weight.shape[:2], -1)
    except RuntimeError:  # the distance between kernel positions varies
        return False
    return True


def _contiguous_groups(weight: Tensor) -> bool:
    return (
        weight.shape[1] % 4 == 0
        and weight.movedim(1, -1).is_contiguous()
        and weight.data_ptr() % ALIGNED == 0
    )
