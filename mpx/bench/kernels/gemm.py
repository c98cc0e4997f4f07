"""Matrix products, dense and 2:4, called eagerly and in a CUDA graph: square ones, BERT's linear layers, and batches of small ones.

The CPU is always measured too, with NumPy and PyTorch. A 2:4 product counts the operations of the dense one.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import torch

from mpx.bench.kernels import sparse_gemm
from mpx.bench.kernels.work import RESULT, Work, graphed, ladder, refused, timed, would_take
from mpx.measure.matmul import PRODUCT_FORMATS, Product, batched, float32_as, linear, missing, product, relative_error
from mpx.measure.peaks import card

COLUMNS = (
    "device", "library", "format", "pattern", "how", "shape", "batch", "rows", "columns", "inner", *RESULT,
    "peak_tflops_per_s", "share_of_peak",
)  # fmt: skip
FORMATS = tuple(name for name in PRODUCT_FORMATS if name != "fp8_e5m2")  # which is as fast as fp8_e4m3
SIZE = {"cpu": 1024, "cuda": 8192}
BERT = (  # tokens, outputs, inputs: feed-forward layers of BERT-small, base and large
    (32768, 2048, 512), (32768, 512, 2048), (32768, 3072, 768), (32768, 768, 3072), (32768, 4096, 1024), (32768, 1024, 4096),
    (512, 3072, 768),
)  # fmt: skip
BERT_ON_CPU = ((512, 2048, 512), (512, 512, 2048))
BERT_FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "int8")
BATCHED = {"cpu": (64, (16, 32, 64)), "cuda": (4096, (16, 32, 64, 128))}  # pairs, sizes


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per product. size: of the largest square matrices. A number leaves out BERT's shapes."""
    for kind in dict.fromkeys((device.type, "cpu")):
        here = torch.device(kind)
        largest = SIZE[kind] if size == "auto" else size if here == device else min(size, SIZE[kind])
        for library, fmt in [("torch", fmt) for fmt in FORMATS] + ([("numpy", "fp64"), ("numpy", "fp32")] if kind == "cpu" else []):
            announce(f"{fmt} on the {'GPU' if kind == 'cuda' else 'CPU'}" + (" by NumPy" if library == "numpy" else ""))
            rate = None  # operations per second of the previous product
            for kind_of, shape, batch, make in _products(library, fmt, here, largest, all_shapes=size == "auto"):
                flops = 2.0 * batch * prod(shape)
                reason = missing(fmt, here) or (would_take(flops / rate, here) if rate else None)
                for row in _ways(library, fmt, kind_of, shape, here, make, reason, batch):
                    rate = row["tflops_per_s"] * 1e12 if row["pattern"] == "dense" and row["tflops_per_s"] else rate
                    yield row


def _products(library: str, fmt: str, device: torch.device, largest: int, *, all_shapes: bool) -> Iterator[tuple]:
    """(kind, (rows, columns, inner), batch, function that makes the product): small ones in batches, then square ones by size."""
    batch, sizes = BATCHED[device.type]
    if library == "torch":
        for n in sizes if all_shapes else sizes[:1]:
            yield "batched", (n, n, n), batch, partial(batched, fmt, batch, n, device)
    for n in ladder(largest):
        yield "square", (n, n, n), 1, partial(_by_numpy, fmt, n) if library == "numpy" else partial(product, fmt, n, device)
    if library == "torch" and all_shapes and fmt in BERT_FORMATS:
        for shape in BERT if device.type == "cuda" else BERT_ON_CPU:
            yield "linear", shape, 1, partial(linear, fmt, *shape, device)


def _ways(
    library: str, fmt: str, kind: str, shape: tuple[int, int, int], device: torch.device, make: Callable[[], Product],
    reason: str | None, batch: int = 1,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Rows of one product: eager and in a CUDA graph, each dense and, where a library has it, 2:4."""
    rows, columns, inner = shape
    flops = 2.0 * batch * rows * columns * inner
    about = {"device": device.type, "format": fmt, "shape": kind, "batch": batch, "rows": rows, "columns": columns, "inner": inner}
    ways = [(library, "dense", "eager")] + ([(library, "dense", "graph")] if device.type == "cuda" else [])
    if device.type == "cuda" and kind != "batched" and fmt in sparse_gemm.FORMATS_2OF4:
        ways += [("cuSPARSELt", "2of4", "eager"), ("cuSPARSELt", "2of4", "graph")]
    for of, pattern, how in ways:
        lacking = reason or (sparse_gemm.missing(fmt, device) if pattern == "2of4" else None)
        source = make if pattern == "dense" else lambda how=how: sparse_gemm.sparse_linear(fmt, *shape, device, search=how == "graph")
        result = refused(lacking) if lacking else timed(lambda s=source, h=how: _work(s(), flops, h), device, float32_as(fmt))
        row = about | {"library": of, "pattern": pattern, "how": how} | result | _peak(fmt, pattern, device, result["tflops_per_s"])
        yield {column: row[column] for column in COLUMNS}


def _work(made: Product, flops: float, how: str) -> Work:
    work = Work(made.call, lambda out: relative_error(made, out), flops)
    return graphed(work) if how == "graph" else work


def _by_numpy(fmt: str, n: int) -> Product:
    made = product(fmt, n, torch.device("cpu"))
    a, b = made.a.numpy(), made.b.numpy()
    return Product(fmt, made.a, made.b, lambda: torch.from_numpy(a @ b))


def _peak(fmt: str, pattern: str, device: torch.device, rate: float | None) -> dict[str, float | None]:
    """The vendor's dense figure for dense products, the sparse one for 2:4."""
    found = card(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    peak = None if found is None else found.dense(fmt) if pattern == "dense" else found.sparse(fmt)
    return {"peak_tflops_per_s": peak, "share_of_peak": rate / peak if rate and peak else None}
