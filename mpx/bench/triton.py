"""2:4 masks by magnitude: training's Triton kernel, PyTorch's operations, and the same operations compiled.

Each returns the mask and the pruned weight.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from mpx.acceleration.compiled import prepare_compiler
from mpx.bench.tables import About, device_name, notes, pivot, say
from mpx.bench.work import Row, Work, ladder, timed
from mpx.measure.matmul import WrongProductError, random_matrix
from mpx.precision.formats import FORMATS
from mpx.render.picture import Picture, picture
from mpx.render.rates import curves_of, rates_figure
from mpx.sparsity.patterns import keep_largest, mask_2of4
from mpx.system.machine import builds_kernels

MEASURED = ("fp32", "fp16", "bf16")
SIZE = {"cpu": 1024, "cuda": 8192}
Masked = tuple[Tensor, Tensor]  # mask, pruned weight


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per way, format and size of a square weight. size: the largest."""
    for way, (run, reason) in ways(device).items():
        for fmt in MEASURED:
            announce(f"2:4 masks in {fmt} by {way}")
            for n in ladder(SIZE[device.type] if size == "auto" else int(size), steps=4):
                row = {"device": device.type, "way": way, "format": fmt, "size": n}
                yield row | timed(partial(work, run, fmt, n, device), device, fmt, reason)


def ways(device: torch.device) -> dict[str, tuple[Callable[[Tensor], Masked], str | None]]:
    """name -> (function, the reason why it cannot run here)."""
    prepare_compiler()
    compiler = None if builds_kernels() else "no C compiler with Python's header files here"
    kernel = compiler if find_spec("triton") else "Triton is not installed"
    return {
        "PyTorch": (_by_operations, None),
        "torch.compile": (torch.compile(_by_operations, dynamic=True), compiler),
        "Triton": (_by_kernel, kernel if device.type == "cuda" else "Triton's kernels need a CUDA device"),
    }


def _by_operations(weight: Tensor) -> Masked:
    """mask_2of4 for sizes that are multiples of four."""
    mask = keep_largest(weight.reshape(-1, 4), 2).reshape(weight.shape)
    return mask, weight * mask


def _by_kernel(weight: Tensor) -> Masked:
    from mpx.sparsity.mask_launch import masks_by_place

    mask = masks_by_place([weight], 2)[0]
    return mask, weight * mask


def work(run: Callable[[Tensor], Masked], fmt: str, n: int, device: torch.device) -> Work:
    """Masks must equal those of the weight in float64, bit for bit. Moved: weight read, mask and pruned
    weight written.
    """
    weight = random_matrix(fmt, (n, n), device, seed=0)
    weight[: n // 2] = (4 * weight[: n // 2]).round()  # equal magnitudes become frequent

    def error(made: Masked) -> float:
        exact = mask_2of4(weight.double())
        if not (torch.equal(made[0], exact) and torch.equal(made[1], weight * exact)):
            raise WrongProductError(f"wrong mask: {int((made[0] != exact).sum())} of {n * n} places differ")
        return 0.0

    return Work(lambda: run(weight), error, moved=n * n * (2 * FORMATS[fmt].dtype.itemsize + 1))


def show(about: About, rows: list[Row]) -> None:
    by_format = sorted(rows, key=lambda row: MEASURED.index(row["format"]))
    title, down = f"2:4 mask and pruned weight on {device_name(about)}", ("format", "way")
    pivot(f"{title}, GB/s by size", by_format, down, "size", "gb_per_s")
    pivot("The same, ms by size", by_format, down, "size", "ms", ".4f")
    say(
        "GB/s: the weight read once, mask and pruned weight written once. Every mask equals float64's, bit "
        "for bit."
    )
    notes(about, rows, down)


def plot(about: About, rows: list[Row]) -> Picture | None:
    panels = curves_of(rows, "format", "way", "size", "gb_per_s")
    draw = partial(rates_figure, panels, "rows and columns", "GB/s")
    return picture("triton", "2:4 masks", device_name(about), "Logarithmic on both axes.", draw)
