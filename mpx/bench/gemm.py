"""Matrix products, dense and 2:4, called eagerly and in a CUDA graph: square ones and BERT's linear
layers.

A 2:4 product counts the operations of the dense one. cuSPARSELt multiplies a compressed weight by dense
activations, weight first, so that the result is transposed; transposing it back costs more than it gains. Its
fastest algorithm depends on the operands' shapes and layouts, so a search is valid for these alone.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from mpx.bench.tables import RATE, About, device_name, flat, notes, pivot, say
from mpx.bench.work import Row, Work, graphed, ladder, multiplied, share, timed, vendors
from mpx.measure.matmul import (
    PRODUCT_FORMATS,
    Product,
    linear,
    product,
    random_matrix,
)
from mpx.precision.formats import FORMATS
from mpx.private.torch_kernels import compress_2of4, fastest_mm_2of4, mm_2of4
from mpx.render.picture import Picture, picture
from mpx.render.rates import Curve, rates_figure
from mpx.sparsity.kernels import unsupported_device
from mpx.sparsity.patterns import mask_2of4

MEASURED = tuple(fmt for fmt in PRODUCT_FORMATS if fmt != "fp8_e5m2")  # which is as fast as fp8_e4m3
FORMATS_2OF4 = ("fp16", "bf16", "fp8_e4m3", "int8")
RESULT_IN = {"int8": torch.int32, "fp8_e4m3": torch.bfloat16}  # as dense products; int8 would overflow
SIZE = {"cpu": 1024, "cuda": 8192}
# of BERT-small, base and large, whose feed-forward is 4 times as wide
WIDTHS = {"cpu": (512,), "cuda": (512, 768, 1024)}
TOKENS = {"cpu": (512,), "cuda": (32768, 512)}
# shape's name, (rows, columns, inner), make
Shaped = tuple[str, tuple[int, int, int], Callable[[], Product]]


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per product, way and pattern. size: of the largest square matrices. A number leaves out BERT's
    shapes.
    """
    largest = SIZE[device.type] if size == "auto" else int(size)
    for fmt in MEASURED:
        announce(fmt)
        for shape, sizes, make in _products(fmt, device, largest, layers=size == "auto"):
            about: Row = {"device": device.type, "library": "torch", "format": fmt, "shape": shape}
            about |= dict(zip(("rows", "columns", "inner"), sizes, strict=True))
            yield from _ways(about, fmt, sizes, device, make)


def _products(fmt: str, device: torch.device, largest: int, *, layers: bool) -> Iterator[Shaped]:
    for n in ladder(largest):
        yield "square", (n, n, n), partial(product, fmt, n, device)
    for tokens in TOKENS[device.type] if layers else ():
        for width in WIDTHS[device.type]:
            for outputs, inputs in ((4 * width, width), (width, 4 * width)):
                make = partial(linear, fmt, tokens, outputs, inputs, device)
                yield "linear", (tokens, outputs, inputs), make


def _ways(
    about: Row, fmt: str, sizes: tuple[int, int, int], device: torch.device, make: Callable[[], Product]
) -> Iterator[Row]:
    """Rows of one product: eager and in a CUDA graph, each dense and, where cuSPARSELt has it, 2:4."""
    vendor, sparse = vendors(device), fmt in FORMATS_2OF4
    for pattern in ("dense", "2of4") if device.type == "cuda" and sparse else ("dense",):
        for how in ("eager", "graph") if device.type == "cuda" else ("eager",):
            of_pattern, reason = make, None
            if pattern == "2of4":
                of_pattern = partial(sparse_linear, fmt, *sizes, device, search=how == "graph")
                reason = unsupported_device(device)
            made = timed(partial(_work, of_pattern, how), device, fmt, reason)
            peak = None if vendor is None else vendor.dense(fmt) if pattern == "dense" else vendor.sparse(fmt)
            ends = {"peak_tflops_per_s": peak, "share_of_peak": share(made["tflops_per_s"], peak)}
            yield about | {"pattern": pattern, "how": how} | made | ends


def _work(make: Callable[[], Product], how: str) -> Work:
    return graphed(multiplied(make())) if how == "graph" else multiplied(make())


def sparse_linear(
    fmt: str, tokens: int, outputs: int, inputs: int, device: torch.device, *, search: bool
) -> Product:
    """a: the pruned weight [outputs, inputs], zeros included. b: activations [inputs, tokens]. Result
    [outputs, tokens].

    search: let cuSPARSELt search for its fastest algorithm on these operands.
    """
    weight = random_matrix(fmt, (outputs, inputs), device, seed=1)
    weight = weight * mask_2of4(weight.float() if fmt == "int8" else weight)
    x = random_matrix(fmt, (tokens, inputs), device, seed=0)
    if fmt.startswith("fp8"):
        weight, x = weight.to(FORMATS[fmt].dtype), x.to(FORMATS[fmt].dtype)
    packed, b, out = compress_2of4(weight), x.t(), RESULT_IN.get(fmt)
    chosen: dict[str, Any] = dict(fastest_mm_2of4(packed, b, out)) if search else {}
    return Product(fmt, weight, b, lambda: mm_2of4(packed, b, out, **chosen))


def show(about: About, rows: list[Row]) -> None:
    name = device_name(about)
    square = [row for row in rows if row["shape"] == "square"]
    title = f"Square products on {name}, TFLOP/s by size"
    pivot(title, square, ("format", "pattern", "how"), "rows", "tflops_per_s")
    if layers := gains(rows):
        columns = [
            ("tokens×out×in", "layer", None),
            ("format", "format", None),
            *((way, way, RATE) for way in WAYS),
        ]
        flat(
            f"BERT's linear layers on {name}, TFLOP/s", layers, [*columns, ("2:4 ÷ dense", "speed-up", ".2f")]
        )
    say(
        "Random operands, each result checked against float64 first. int8 in TOP/s. A 2:4 product counts "
        "the operations "
        "of the dense one. graph: ten calls in one CUDA graph, for 2:4 with the algorithm searched."
    )
    notes(about, rows, ("format", "shape"))


WAYS = ("dense eager", "dense graph", "2of4 eager", "2of4 graph")


def gains(rows: list[Row]) -> list[Row]:
    """One row per layer and format: its rates, and the speed-up of 2:4 over dense, each in a graph."""
    lines: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["shape"] == "linear" and row["tflops_per_s"]:
            layer = f"{row['rows']}×{row['columns']}×{row['inner']}"
            new = {"layer": layer, "format": row["format"], **dict.fromkeys(WAYS)}
            lines.setdefault((layer, row["format"]), new)[f"{row['pattern']} {row['how']}"] = row[
                "tflops_per_s"
            ]
    return [line | {"speed-up": share(line["2of4 graph"], line["dense graph"])} for line in lines.values()]


def plot(about: About, rows: list[Row]) -> Picture | None:
    """Square products by the fastest way to call them: one colour per format, one line style per pattern."""
    formats, how = list(dict.fromkeys(row["format"] for row in rows)), rows[-1]["how"]
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row["shape"] == "square" and row["how"] == how and row["tflops_per_s"]:
            curves.setdefault((row["format"], row["pattern"]), []).append((row["rows"], row["tflops_per_s"]))
    panel = [
        Curve(
            fmt if pattern == "dense" else f"{fmt} 2:4", points, formats.index(fmt), int(pattern != "dense")
        )
        for (fmt, pattern), points in curves.items()
    ]
    draw = partial(
        rates_figure, {"in CUDA graphs" if how == "graph" else "": panel}, "rows and columns", "TFLOP/s"
    )
    return picture(
        "gemm", "Square matrix products", device_name(about), "int8 in TOP/s. Logarithmic axes.", draw
    )
