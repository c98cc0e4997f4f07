"""Routines of BLAS beneath the roofs of this machine: COPY, which is the memory's, and AXPY, GEMV and GEMM.

Each does more arithmetic per byte than the one before, so that first the memory is the limit, then the
processor. Source: Williams et al., Roofline, CACM 52(4), 2009.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from mpx.bench.tables import About, device_name, notes, pivot, say, vendor
from mpx.bench.work import Row, Work, against, ladder, multiplied, timed
from mpx.measure.ceilings import fastest
from mpx.measure.matmul import product, random_matrix, tolerance
from mpx.precision.formats import FORMATS
from mpx.render.picture import Picture, picture
from mpx.render.rates import Curve, curves_of, rates_figure
from mpx.system.printing import rate

ROUTINES = ("axpy", "gemv", "gemm")
MEASURED = ("fp64", "fp32", "tf32", "fp16", "bf16")
SIZE = {"cpu": 1024, "cuda": 8192}
SIZES = 4
LEAST = 1 / 16  # operations per byte, of AXPY in FP64 about
COPIED = {"cpu": 8192, "cuda": 16384}  # size² FP32 numbers: 256 MiB and 1 GiB, which no cache holds


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per routine, format and size n: vectors of n² numbers (COPY, AXPY) or n×n matrices.

    The first row is the only one of COPY.
    """
    largest, copied = (int(usual[device.type] if size == "auto" else size) for usual in (SIZE, COPIED))
    cases = [("copy", "fp32", [copied])]
    for routine in ROUTINES:
        # TF32 is for GEMM alone
        formats = [fmt for fmt in MEASURED if routine == "gemm" or fmt != "tf32"]
        cases += [(routine, fmt, ladder(largest, SIZES)) for fmt in formats]
    for routine, fmt, sizes in cases:
        announce(f"{routine} in {fmt}")
        for n in sizes:
            flops, moved = cost(routine, n, FORMATS[fmt].dtype.itemsize)
            about = {"device": device.type, "routine": routine, "format": fmt, "size": n}
            about |= {"flops": flops, "bytes": moved, "flops_per_byte": flops / moved}
            yield about | timed(partial(_work, routine, fmt, n, device), device, fmt)


def cost(routine: str, n: int, size: int) -> tuple[int, int]:
    """(operations, the least bytes that must move). size: bytes of a number."""
    return {
        "copy": (0, 2 * n * n * size),
        "axpy": (2 * n * n, 3 * n * n * size),  # reads x and y, writes y
        "gemv": (2 * n * n, (n * n + 2 * n) * size),
        "gemm": (2 * n**3, 3 * n * n * size),
    }[routine]


def _work(routine: str, fmt: str, n: int, device: torch.device) -> Work:
    flops, moved = cost(routine, n, FORMATS[fmt].dtype.itemsize)
    if routine == "gemm":
        return multiplied(product(fmt, n, device), moved)
    if routine == "gemv":
        matrix, x = random_matrix(fmt, (n, n), device, 0), random_matrix(fmt, (n,), device, 1)
        error = against(lambda: matrix.double() @ x.double(), tolerance(fmt, n))
        return Work(lambda: torch.mv(matrix, x), error, flops, moved)
    x = random_matrix(fmt, (n * n,), device, 0)
    out = torch.empty_like(x)
    if routine == "copy":
        return Work(lambda: out.copy_(x), against(x.double, 0.0), flops, moved)
    y = random_matrix(fmt, (n * n,), device, 1)  # not `out`, so that a repetition changes nothing
    error = against(lambda: y.double() + 2.5 * x.double(), tolerance(fmt, 4))
    return Work(lambda: torch.add(y, x, alpha=2.5, out=out), error, flops, moved)


def show(about: About, rows: list[Row]) -> None:
    bandwidth, tops = roofs(rows)
    routines = [row | {"of_roof": of_roof(row, bandwidth, tops)} for row in rows[1:]]
    vectors = [row for row in routines if row["routine"] != "gemm"]
    down = ("routine", "format")
    pivot(f"BLAS on {device_name(about)}, TFLOP/s by size", routines, down, "size", "tflops_per_s")
    pivot("Minimum memory traffic, GB/s by size", vectors, down, "size", "gb_per_s")
    pivot("Arithmetic intensity, operations per byte by size", routines, down, "size", "flops_per_byte")
    pivot("Share of the roof", routines, down, "size", "of_roof", ".0%")
    seen = ", ".join(f"{fmt} {rate(top)} TFLOP/s" for fmt, top in tops.items())
    card = vendor(about)
    peak = f" of the vendor's {card.bandwidth_gb_per_s:,.0f}" if card else ""
    say(f"Roofs seen in this run: {bandwidth or 0:,.0f}{peak} GB/s read and written; {seen}.")
    say("AXPY of size n works on n² numbers. Small ones stay in caches, above the roof of memory.")
    notes(about, rows, down)


def roofs(rows: list[Row]) -> tuple[float | None, dict[str, float]]:
    """(the copy's GB/s, format -> TFLOP/s of the fastest routine)."""
    copied, *routines = rows
    return copied["gb_per_s"], fastest(routines)


def of_roof(row: Row, bandwidth: float | None, tops: Mapping[str, float]) -> float | None:
    """The share of the lower of the two roofs at the row's arithmetic intensity."""
    top = tops.get(row["format"])
    if not row["tflops_per_s"] or not bandwidth or not top:
        return None
    return row["tflops_per_s"] / min(top, row["flops_per_byte"] * bandwidth / 1e3)


def plot(about: About, rows: list[Row]) -> Picture | None:
    """One colour per format. Its roof is dashed, and bends where arithmetic becomes the limit."""
    bandwidth, tops = roofs(rows)
    most = max(row["flops_per_byte"] for row in rows)
    curves: list[Curve] = []
    for i, (fmt, top) in enumerate(tops.items()):
        of_format = [row for row in rows[1:] if row["format"] == fmt]
        for of_routine in curves_of(
            of_format, "routine", "format", "flops_per_byte", "tflops_per_s"
        ).values():
            curves += [replace(curve, colour=i) for curve in of_routine]
        if bandwidth:
            ridge = top * 1e3 / bandwidth  # operations per byte
            roof = [(x, min(top, x * bandwidth / 1e3)) for x in (LEAST, ridge, max(most, ridge))]
            curves.append(Curve(f"roof of {fmt}, {rate(top)}", roof, i, line=1))
    draw = partial(rates_figure, {"": curves}, "operations per byte that must be moved", "TFLOP/s")
    caption = "From the left AXPY, GEMV and GEMM, beneath the roofs seen in this run."
    return picture("blas", "Roofline", device_name(about), caption, draw)
