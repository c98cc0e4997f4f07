"""One routine of each level of BLAS: AXPY, GEMV and GEMM.

Each does more arithmetic per byte than the one before, so that first the memory is the limit, then the processor. Source: Williams et al.,
Roofline, CACM 52(4), 2009.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from mpx.bench.kernels import copy
from mpx.bench.kernels.work import RESULT, Work, against, ladder, refused, timed, would_take
from mpx.measure.matmul import float32_as, missing, product, random_matrix, relative_error, tolerance
from mpx.precision.formats import FORMATS

COLUMNS = ("device", "routine", "format", "size", "flops", "bytes", "flops_per_byte", *RESULT)
ROUTINES = ("axpy", "gemv", "gemm")
MEASURED = ("fp64", "fp32", "tf32", "fp16", "bf16")
SIZE = {"cpu": 1024, "cuda": 8192}
SIZES = 4


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per routine, format and size n: vectors of n² numbers (AXPY) or n×n matrices. The first row is a copy, the memory's limit."""
    yield _copied(device, copy.SIZE[device.type] if size == "auto" else size, announce)
    for routine in ROUTINES:
        for fmt in MEASURED if routine == "gemm" else [fmt for fmt in MEASURED if fmt != "tf32"]:  # TF32 is for GEMM alone
            announce(f"{routine} in {fmt}")
            rate = None
            for n in ladder(SIZE[device.type] if size == "auto" else size, SIZES):
                flops, moved = cost(routine, n, FORMATS[fmt].dtype.itemsize)
                reason = missing(fmt, device) or (would_take(flops / rate, device) if rate else None)
                made = refused(reason) if reason else timed(lambda r=routine, f=fmt, n=n: _work(r, f, n, device), device, float32_as(fmt))
                rate = made["tflops_per_s"] * 1e12 if made["tflops_per_s"] else rate
                about = {"device": device.type, "routine": routine, "format": fmt, "size": n, "flops": flops, "bytes": moved}
                yield about | {"flops_per_byte": flops / moved} | made


def cost(routine: str, n: int, size: int) -> tuple[int, int]:
    """(operations, the least bytes that must move). size: bytes of a number."""
    return {
        "axpy": (2 * n * n, 3 * n * n * size),  # reads x and y, writes y
        "gemv": (2 * n * n, (n * n + 2 * n) * size),
        "gemm": (2 * n**3, 3 * n * n * size),
    }[routine]


def _copied(device: torch.device, n: int, announce: Callable[[str], None]) -> dict[str, Any]:
    announce("copy, the memory's limit")
    made = timed(lambda: copy.work(n, device), device)
    about = {"device": device.type, "routine": "copy", "format": "fp32", "size": n, "flops": 0, "bytes": 8 * n * n, "flops_per_byte": 0.0}
    return about | made


def _work(routine: str, fmt: str, n: int, device: torch.device) -> Work:
    flops, moved = cost(routine, n, FORMATS[fmt].dtype.itemsize)
    if routine == "gemm":
        made = product(fmt, n, device)
        return Work(made.call, lambda out: relative_error(made, out), flops, moved)
    call, reference, inner = (_axpy if routine == "axpy" else _gemv)(fmt, n, device)
    return Work(call, against(reference, tolerance(fmt, inner)), flops, moved)


def _axpy(fmt: str, n: int, device: torch.device) -> tuple[Callable[[], Tensor], Callable[[], Tensor], int]:
    """2.5·x + y, written to another tensor, so that a repetition changes nothing."""
    x, y = (random_matrix(fmt, (n * n,), device, seed) for seed in (0, 1))
    out = torch.empty_like(y)
    return lambda: torch.add(y, x, alpha=2.5, out=out), lambda: y.double() + 2.5 * x.double(), 4


def _gemv(fmt: str, n: int, device: torch.device) -> tuple[Callable[[], Tensor], Callable[[], Tensor], int]:
    matrix, x = random_matrix(fmt, (n, n), device, 0), random_matrix(fmt, (n,), device, 1)
    return lambda: torch.mv(matrix, x), lambda: matrix.double() @ x.double(), n
