"""The reference card of the number formats: their properties, this machine's rate of matrix products, the
vendor's peak.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from mpx.bench.tables import RATE, About, device_name, flat, notes, say
from mpx.bench.work import Row, Work, multiplied, share, timed, vendors
from mpx.measure.matmul import PRODUCT_FORMATS, product
from mpx.precision.formats import FORMATS
from mpx.render.picture import Picture, picture
from mpx.render.rates import grouped_bars

CARD = {  # property -> (head of its column, format specification)
    "bits": ("bits", "d"),
    "exponent_bits": ("exponent", "d"),
    "mantissa_bits": ("mantissa", "d"),
    "epsilon": ("epsilon", ".4g"),
    "smallest_normal": ("smallest normal", ".4g"),
    "smallest_subnormal": ("smallest subnormal", ".4g"),
    "largest": ("largest", ".5g"),
    "significant_digits": ("digits", ".1f"),
}
INT8 = dict.fromkeys(CARD) | {"bits": 8, "largest": 127}
NOTES = {
    "tf32": "stored in 32 bits",
    "int8": "an integer format: -128 to 127 in steps of 1, so without exponent, mantissa, epsilon or "
    "normal numbers",
    "fp8_e5m2": "multiplied by fp8_e4m3, as gradients by weights are: cuBLASLt has no product of two E5M2 "
    "matrices",
}
SIZE = {"cpu": 1024, "cuda": 8192}  # rows of the matrices: large enough to be limited by arithmetic


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[Row]:
    """One row per format. size: rows and columns of the matrices, or auto."""
    n = SIZE[device.type] if size == "auto" else int(size)
    vendor = vendors(device)
    for fmt in PRODUCT_FORMATS:
        announce(fmt)
        row = {"format": fmt, **card(fmt), "note": NOTES.get(fmt), "size": n}
        row |= timed(partial(_work, fmt, n, device), device, fmt)
        peak = vendor.dense(fmt) if vendor else None
        yield row | {"peak_tflops_per_s": peak, "share_of_peak": share(row["tflops_per_s"], peak)}


def _work(fmt: str, n: int, device: torch.device) -> Work:
    return multiplied(product(fmt, n, device))


def card(fmt: str) -> Row:
    """The format's properties; None where one does not apply."""
    return INT8 if fmt == "int8" else {name: getattr(FORMATS[fmt], name) for name in CARD}


def show(about: About, rows: list[Row]) -> None:
    properties = [(head, name, spec) for name, (head, spec) in CARD.items()]
    flat("What each format can hold", rows, [("format", "format", None), *properties])
    for row in rows:
        if row["note"]:
            say(f"{row['format']}: {row['note']}")
    columns = [
        ("format", "format", None),
        ("TFLOP/s", "tflops_per_s", RATE),
        ("vendor peak", "peak_tflops_per_s", RATE),
        ("of peak", "share_of_peak", ".0%"),
        ("error", "relative_error", ".1e"),
    ]
    flat(f"Products of {rows[0]['size']}² matrices on {device_name(about)}", rows, columns)
    say("Random operands; int8 in TOP/s; error: ‖out − ref‖ ÷ ‖ref‖, ref being the same product in float64.")
    notes(about, rows, ("format",))


def plot(about: About, rows: list[Row]) -> Picture | None:
    """The measured rates beside the vendor's."""
    ways = {"measured here": "tflops_per_s", "vendor's dense peak": "peak_tflops_per_s"}
    bars = {row["format"]: {way: row[key] for way, key in ways.items() if row[key]} for row in rows}
    draw = partial(grouped_bars, bars, "TFLOP/s (int8: TOP/s)")
    return picture("formats", "Square matrix products", device_name(about), "By number format.", draw)
