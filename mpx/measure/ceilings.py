"""The limits of this machine, from results of mpx.bench, and a run's share of them: MFU (model FLOPs
utilisation).

A result only counts if it was measured on the same device, with the same PyTorch and driver, at the device's
usual sizes (size=auto), and while nothing else used it. On a CPU, the number of threads must be the same.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mpx.measure.environment import environment
from mpx.measure.exclusive import BUSY
from mpx.measure.peaks import card

# keys of the environment that must agree
SAME_MACHINE = {"cuda": ("torch", "driver"), "cpu": ("torch", "cpu", "threads")}


@dataclass(frozen=True)
class Limit:
    """tflops_per_s: for the run's mix of formats; None where unknown. words: the source of the figure, or why
    it is unknown.
    """

    tflops_per_s: float | None
    words: str


def ceilings(output_dir: str | Path, device: torch.device) -> dict[str, float]:
    """Format -> TFLOP/s of the fastest dense product of this machine in output_dir/bench."""
    paths = [Path(output_dir) / "bench" / f"{what}.json" for what in ("gemm", "formats")]
    return fastest(row for path in paths for row in _read(path, device) if row.get("pattern") != "2of4")


def fastest(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Format -> the highest TFLOP/s. rows: of mpx.bench."""
    best: dict[str, float] = {}
    for row in rows:
        if rate := row.get("tflops_per_s"):
            best[row["format"]] = max(rate, best.get(row["format"], 0.0))
    return best


def _read(path: Path, device: torch.device) -> list[dict[str, Any]]:
    """No rows if the file is missing, cannot be read, was not written by mpx.bench, is another machine's, or
    was measured beside other work.
    """
    try:
        record = json.loads(path.read_text())
        of, now = record["environment"], environment()
        alone = record["exclusive"] is not False
        if device.type == "cuda":
            same = of["device"][0] == torch.cuda.get_device_name(device)
        else:
            same = (record.get("cpu_busy") or 0.0) < BUSY
        same = same and all(of[name] == now[name] for name in SAME_MACHINE[device.type])
        if not (same and alone and record["size"] == "auto"):
            return []
        return [row for row in record["rows"] if row.get("device", record["device"]) == device.type]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def limit(flops: Mapping[str, float], device: torch.device, output_dir: str | Path) -> Limit:
    """The highest rate at which this device can do a mix of work. flops: format -> operations in it.

    The peaks are the vendor's dense figures if the card is known, otherwise the fastest products that
    mpx.bench measured here; never a mix of the two. With several formats, each part runs at its own peak:
    total ÷ Σ flops/peak.
    """
    flops = {fmt: count for fmt, count in flops.items() if count > 0}
    if not flops:
        return Limit(None, "no operation of the model has a FLOP count")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
    if (sheet := card(name)) is not None:
        peaks = {fmt: sheet.dense(fmt) for fmt in flops}
        known = {fmt: peak for fmt, peak in peaks.items() if peak}
        if len(known) == len(flops):
            return Limit(
                _together(flops, known), _words(flops, known, f"vendor's dense peak, {sheet.source}")
            )
    measured = ceilings(output_dir, device)
    known = {fmt: measured[fmt] for fmt in flops if fmt in measured}
    if len(known) == len(flops):
        return Limit(_together(flops, known), _words(flops, known, "measured here by mpx.bench"))
    missing = ", ".join(fmt for fmt in flops if fmt not in known)
    return Limit(
        None,
        f"no vendor's peak known for {missing} on {name}, none measured: python -m mpx.bench what=gemm does",
    )


def _together(flops: Mapping[str, float], peaks: Mapping[str, float]) -> float:
    return sum(flops.values()) / sum(count / peaks[fmt] for fmt, count in flops.items())


def _words(flops: Mapping[str, float], peaks: Mapping[str, float], whose: str) -> str:
    total = sum(flops.values())
    parts = [
        f"{fmt} {peaks[fmt]:.4g} TFLOP/s" + (f" for {count / total:.0%}" if len(flops) > 1 else "")
        for fmt, count in flops.items()
    ]
    return f"{', '.join(parts)} ({whose})"


def mfu(
    tflops: float | None,
    flops: Mapping[str, float],
    device: torch.device,
    output_dir: str | Path,
    *,
    count: int,
) -> dict[str, Any]:
    """`mfu` and `mfu_reference`, or `mfu_reason`, for result.json. tflops: per second, of `count` devices
    together.
    """
    most = limit(flops, device, output_dir)
    if tflops is None or most.tflops_per_s is None:
        return {
            "mfu": None,
            "mfu_reason": "no throughput was measured" if tflops is None and flops else most.words,
        }
    return {"mfu": tflops / (most.tflops_per_s * count), "mfu_reference": most.words}
