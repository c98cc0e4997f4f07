"""2:4 masks by magnitude: a Triton kernel that tunes itself, PyTorch's operations, and the same operations compiled.

Each returns the mask and the pruned weight. Compression for cuSPARSELt is a separate step, because the library does not document the
layout of its metadata.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from mpx.acceleration.compiled import prepare_compiler
from mpx.bench.kernels import sparse_gemm
from mpx.bench.kernels.work import RESULT, Work, ladder, refused, timed
from mpx.machine import builds_kernels
from mpx.measure.matmul import WrongProductError, missing, random_matrix
from mpx.precision.formats import FORMATS
from mpx.private.torch_kernels import compress_2of4
from mpx.sparsity.patterns import keep_largest, mask_2of4

COLUMNS = ("device", "way", "format", "size", "compressed", *RESULT)
MEASURED = ("fp32", "fp16", "bf16")
SIZE = {"cpu": 1024, "cuda": 8192}
Masked = tuple[Tensor, Tensor]  # mask, pruned weight


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per way, format and size of a square weight, without and with compression. size: the largest."""
    for way, run in ways(device).items():
        for fmt in MEASURED:
            announce(f"2:4 masks in {fmt} by {way}")
            for n in ladder(SIZE[device.type] if size == "auto" else size, steps=4):
                for compressed in (False, True):
                    row = {"device": device.type, "way": way, "format": fmt, "size": n, "compressed": compressed}
                    reason = run if isinstance(run, str) else missing(fmt, device)
                    reason = reason or (sparse_gemm.missing(fmt, device) if compressed else None)
                    make = lambda r=run, f=fmt, n=n, c=compressed: work(r, f, n, device, compress=c)  # noqa: E731
                    yield row | (refused(reason) if reason else timed(make, device))


def ways(device: torch.device) -> dict[str, Callable[[Tensor], Masked] | str]:
    """name -> function, or the reason why there is none."""
    prepare_compiler()
    lacking = None if builds_kernels() else "no C compiler with Python's header files here"
    found = {"PyTorch": _by_operations, "torch.compile": lacking or torch.compile(_by_operations, dynamic=True)}
    if device.type != "cuda":
        return found | {"Triton": "Triton's kernels need a CUDA device"}
    if find_spec("triton") is None:  # PyTorch for CUDA has it on some systems only
        return found | {"Triton": "Triton is not installed"}
    from mpx.bench.kernels.mask_and_prune import mask_and_prune

    return found | {"Triton": lacking or mask_and_prune}


def _by_operations(weight: Tensor) -> Masked:
    """mask_2of4 for sizes that are multiples of four."""
    mask = keep_largest(weight.reshape(-1, 4), 2).reshape(weight.shape)
    return mask, weight * mask


def work(run: Callable[[Tensor], Masked], fmt: str, n: int, device: torch.device, *, compress: bool) -> Work:
    """Masks must equal those of the weight in float64, bit for bit. Moved bytes: weight read, mask and pruned weight written."""
    weight = random_matrix(fmt, (n, n), device, seed=0)
    weight[: n // 2] = (4 * weight[: n // 2]).round()  # equal magnitudes become frequent

    def call() -> Masked:
        made = run(weight)
        if compress:
            compress_2of4(made[1])
        return made

    def error(made: Masked) -> float:
        exact = mask_2of4(weight.double())
        if not (torch.equal(made[0], exact) and torch.equal(made[1], weight * exact)):
            raise WrongProductError(f"wrong mask: {int((made[0] != exact).sum())} of {n * n} places differ")
        return 0.0

    return Work(call, error, moved=n * n * (2 * FORMATS[fmt].dtype.itemsize + 1))
