"""AXPY, GEMV and GEMM: rates by size, and their shares of the limits that were measured on this machine."""

from dataclasses import replace
from pathlib import Path

import torch

from mpx.bench.show.tables import About, Row, device_name, pivot, say, say_alone, say_table, say_why
from mpx.compare.words import rate
from mpx.measure.ceilings import Ceilings, ceilings, from_rows
from mpx.render.plots.picture import Picture, picture
from mpx.render.plots.roofline import Point, roofline_figure

DOWN = (("routine", "routine"), ("format", "format"))


def show(about: About, rows: list[Row]) -> None:
    bound, of_whom = roofs(about, rows)
    routines = [row | {"of_roof": share(row, bound)} for row in rows if row["routine"] != "copy"]
    name = device_name(about)
    say_table(pivot(f"BLAS on {name}, TFLOP/s by size", routines, DOWN, "size", "tflops_per_s"))
    say_table(
        pivot("Minimum memory traffic, GB/s by size", [row for row in routines if row["routine"] != "gemm"], DOWN, "size", "gb_per_s"),
    )
    say_table(pivot("Arithmetic intensity, operations per byte by size", routines, DOWN, "size", "flops_per_byte"))
    say_table(pivot("Share of the roof", routines, DOWN, "size", "of_roof", ".0%"))
    tops = ", ".join(f"{fmt} {rate(top)} TFLOP/s" for fmt, top in bound.dense.items())
    say(f"Roofs {of_whom}: {bound.gb_per_s or 0:,.0f} GB/s copied; {tops}.")
    say(
        "AXPY of size n works on n² numbers. Small ones stay in caches, above the roof of memory; a little above 100% is the noise of two "
        "measurements."
    )
    say_why(rows, ("routine", "format"))
    say_alone(about)


def roofs(about: About, rows: list[Row]) -> tuple[Ceilings, str]:
    """The limits, and their source: what=copy and what=gemm where both ran here, else this benchmark's fastest results.

    On many CPUs the product of FP16 matrices is slower than that of a matrix and a vector, and then no limit.
    """
    copied = [{"mib": row["bytes"] / 2**21, "gb_per_s": row["gb_per_s"]} for row in rows if row["routine"] == "copy"]
    seen = from_rows(copied + [row for row in rows if row["routine"] != "copy"])
    found = ceilings(Path(about["folder"]).parent, torch.device(about["device"]))
    if found is None or not found.gb_per_s or not found.dense:
        return seen, "seen in this run"
    dense = {fmt: max(top, seen.dense.get(fmt, 0.0)) for fmt, top in found.dense.items()}
    of_whom = "of what=copy and what=gemm here"
    return replace(found, dense=dense), of_whom if dense == found.dense else f"{of_whom}, or of a faster routine"


def share(row: Row, bound: Ceilings) -> float | None:
    """The share of the lower of the two roofs at the row's arithmetic intensity."""
    top = bound.dense.get(row["format"])
    if not row["tflops_per_s"] or not bound.gb_per_s or not top:
        return None
    return row["tflops_per_s"] / min(top, row["flops_per_byte"] * bound.gb_per_s / 1e3)


def plot(about: About, rows: list[Row]) -> Picture:
    bound, of_whom = roofs(about, rows)
    points = [
        Point(row["routine"], row["format"], row["flops_per_byte"], row["tflops_per_s"])
        for row in rows
        if row["tflops_per_s"] and row["routine"] != "copy"
    ]
    draw = lambda: roofline_figure(points, bound.gb_per_s, bound.dense)  # noqa: E731
    return picture("blas", "Roofline", device_name(about), f"Roofs {of_whom}.", draw)
