"""The reference card of the number formats: their properties, this machine's rate of matrix products, and the vendor's peak."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from mpx.bench.kernels.work import one_line
from mpx.measure.matmul import PRODUCT_FORMATS, WrongProductError, float32_as, missing, product, relative_error
from mpx.measure.peaks import dense_peak
from mpx.measure.timing import elapsed, median_time
from mpx.precision.formats import FORMATS

CARD = ("bits", "exponent_bits", "mantissa_bits", "epsilon", "smallest_normal", "smallest_subnormal", "largest", "significant_digits")
RATE = ("size", "tflops_per_s", "relative_error", "samples", "tflops_per_s_reason")
PEAK = ("peak_tflops_per_s", "share_of_peak", "peak_tflops_per_s_reason")
COLUMNS = ("format", *CARD, "note", *RATE, *PEAK)  # int8 counts integer operations

INT8 = dict.fromkeys(CARD) | {"bits": 8, "largest": 127}
NOTES = {
    "tf32": "stored in 32 bits",
    "int8": "an integer format: -128 to 127 in steps of 1, so without exponent, mantissa, epsilon or normal numbers",
    "fp8_e5m2": "multiplied by fp8_e4m3, as gradients by weights are: cuBLASLt has no product of two E5M2 matrices",
}

SIZE = {"cpu": 1024, "cuda": 8192}  # large enough to be limited by arithmetic
PROBE = {"cpu": 256, "cuda": 1024}  # size of a product that tells whether SIZE would take too long
MAX_CALL_S = 0.25  # where a product would take longer, its size is halved until it does not
BUDGET_S = 0.5  # of timing, per format


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per format, with the names of COLUMNS. size: rows and columns of the matrices, or auto.

    announce: called with each format before it is measured.
    """
    for name in PRODUCT_FORMATS:
        announce(name)
        row = {"format": name} | card(name) | {"note": NOTES.get(name)}
        row |= rate(name, device, SIZE[device.type] if size == "auto" else size)
        row |= _beside_peak(row["tflops_per_s"], name, device)
        yield {column: row[column] for column in COLUMNS}


def card(name: str) -> dict[str, Any]:
    """The format's properties; None where a column does not apply."""
    return INT8 if name == "int8" else {column: getattr(FORMATS[name], column) for column in CARD}


def rate(name: str, device: torch.device, size: int) -> dict[str, Any]:
    """TFLOP/s of a checked square product of random operands, 2·size³ operations; or the reason why there is none."""
    nothing = dict.fromkeys(RATE)
    if (reason := missing(name, device)) is not None:
        return nothing | {"tflops_per_s_reason": reason}
    try:
        with float32_as(name):
            n = affordable(name, device, size)
            made = product(name, n, device)
            error = relative_error(made)
            timing = median_time(made.call, device, BUDGET_S)
    except (WrongProductError, RuntimeError) as refused:  # this PyTorch has no such kernel, or memory is short
        return nothing | {"tflops_per_s_reason": one_line(refused)}
    tflops = 2 * n**3 / timing.seconds / 1e12
    return nothing | {"size": n, "tflops_per_s": tflops, "relative_error": error, "samples": timing.samples}


def affordable(name: str, device: torch.device, size: int) -> int:
    """`size`, halved until a product takes about MAX_CALL_S at most: on some CPUs FP16 is 100 times slower than FP32."""
    probe = min(size, PROBE[device.type])
    made = product(name, probe, device)
    elapsed(made.call, device, 1)  # the first one loads kernels
    once = elapsed(made.call, device, 1)
    while size > probe and once * (size / probe) ** 3 > MAX_CALL_S:
        size = max(probe, size // 2 // 16 * 16)
    return size


def _beside_peak(tflops: float | None, name: str, device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return dict.fromkeys(PEAK) | {"peak_tflops_per_s_reason": "vendors print no such figure for CPUs"}
    peak, reason = dense_peak(torch.cuda.get_device_name(device), name)
    share = tflops / peak if tflops and peak else None
    return {"peak_tflops_per_s": peak, "share_of_peak": share, "peak_tflops_per_s_reason": reason}
