"""The limits of a device: the vendor's figures, or the results of mpx.bench; and a run's share of them: MFU
(model FLOPs utilisation).

A result of mpx.bench only counts if it was measured on the same device, with the same PyTorch and driver, at
the device's usual sizes (size=auto), and while nothing else used it. On a CPU, the number of threads must be
the same.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mpx.measure.environment import environment

# keys of the environment that must agree
SAME_MACHINE = {"cuda": ("torch", "driver"), "cpu": ("torch", "cpu", "threads")}


@dataclass(frozen=True)
class Card:
    """names: CUDA's whole names of the device, without "NVIDIA" or "Tesla"; nothing else matches."""

    names: tuple[str, ...]
    source: str
    bandwidth_gb_per_s: float
    dense_as_printed: Mapping[str, float]  # TFLOP/s
    # TFLOP/s that a 2:4 product is worth
    sparse_as_printed: Mapping[str, float] = field(default_factory=dict)

    def dense(self, fmt: str) -> float | None:
        """TFLOP/s of a dense product; None where the sheet has no figure."""
        key = _column(fmt)
        return self.dense_as_printed.get(key) or (
            self.sparse_as_printed[key] / 2 if key in self.sparse_as_printed else None
        )

    def sparse(self, fmt: str) -> float | None:
        """TFLOP/s of a 2:4 product, counted as if it were dense; None where the sheet has no figure."""
        return self.sparse_as_printed.get(_column(fmt))


def card(device_name: str) -> Card | None:
    """The card with this name of `torch.cuda.get_device_name`. Parts of a card (MIG) and laptop versions are
    None.
    """
    name = device_name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    return next((card for card in CARDS if name in card.names), None)


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
        same = all(of[name] == now[name] for name in SAME_MACHINE[device.type])
        if device.type == "cuda":
            same = same and of["device"][0] == torch.cuda.get_device_name(device)
        if not (same and alone and record["size"] == "auto"):
            return []
        return [row for row in record["rows"] if row.get("device", record["device"]) == device.type]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def limit(
    flops: Mapping[str, float], device: torch.device, output_dir: str | Path
) -> tuple[float | None, str]:
    """The highest rate at which this device can do a mix of work, in TFLOP/s, and its source; or None, and
    why it is unknown. flops: format -> operations in it.

    The peaks are the vendor's dense figures if the card is known, otherwise the fastest products that
    mpx.bench measured here; never a mix of the two. With several formats, each part runs at its own peak:
    total ÷ Σ flops/peak.
    """
    flops = {fmt: count for fmt, count in flops.items() if count > 0}
    if not flops:
        return None, "no operation of the model has a FLOP count"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
    if (sheet := card(name)) is not None:
        peaks = {fmt: sheet.dense(fmt) for fmt in flops}
        known = {fmt: peak for fmt, peak in peaks.items() if peak}
        if len(known) == len(flops):
            return _together(flops, known), _words(flops, known, f"vendor's dense peak, {sheet.source}")
    measured = ceilings(output_dir, device)
    known = {fmt: measured[fmt] for fmt in flops if fmt in measured}
    if len(known) == len(flops):
        return _together(flops, known), _words(flops, known, "measured here by mpx.bench")
    missing = ", ".join(fmt for fmt in flops if fmt not in known)
    return (
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
    most, words = limit(flops, device, output_dir)
    if tflops is None or most is None:
        return {
            "mfu": None,
            "mfu_reason": "no throughput was measured" if tflops is None and flops else words,
        }
    return {"mfu": tflops / (most * count), "mfu_reference": words}


def _column(fmt: str) -> str:
    return "fp8" if fmt.startswith("fp8") else fmt


def _half(fp16: float) -> dict[str, float]:
    """FP16 and BF16, which run at the same speed on every card since Ampere."""
    return {"fp16": fp16, "bf16": fp16}


# Each figure is printed on the card's data sheet. It is under `sparse` if the sheet means 2:4 sparsity,
# which many sheets do not say beside the number, and otherwise under `dense`. If a sheet has no dense
# figure, it is half of the sparse one. FP64 is the figure of Tensor Cores if a card has them. FP8 means
# both E4M3 and E5M2. GeForce figures are for FP32 accumulation, which PyTorch uses. A card without a data
# sheet is not listed and has no peak; another card's figure is never used for it.
A100 = {"fp64": 19.5, "fp32": 19.5, "tf32": 156, **_half(312), "int8": 624}
A100_SPARSE = {"tf32": 312, **_half(624), "int8": 1248}
HOPPER_SXM = {"tf32": 989, **_half(1979), "fp8": 3958, "int8": 3958}
HOPPER_NVL = {"tf32": 835, **_half(1671), "fp8": 3341, "int8": 3341}
BLACKWELL = "NVIDIA Blackwell datasheet (GB200 NVL72, HGX B200), one GPU"

CARDS = (
    # Volta and Turing: no 2:4, no BF16, no TF32
    Card(
        ("V100-SXM2-16GB", "V100-SXM2-32GB"), "NVIDIA V100 datasheet", 900,
        {"fp64": 7.8, "fp32": 15.7, "fp16": 125},
    ),
    Card(
        ("V100-PCIE-16GB", "V100-PCIE-32GB"), "NVIDIA V100 datasheet", 900,
        {"fp64": 7.0, "fp32": 14.0, "fp16": 112},
    ),
    Card(("V100S-PCIE-32GB",), "NVIDIA V100 datasheet", 1134, {"fp64": 8.2, "fp32": 16.4, "fp16": 130}),
    Card(("T4",), "NVIDIA T4 datasheet", 300, {"fp32": 8.1, "fp16": 65, "int8": 130}),
    # Ampere
    Card(("A100-SXM4-40GB", "A100-PCIE-40GB"), "NVIDIA A100 datasheet", 1555, A100, A100_SPARSE),
    Card(("A100-SXM4-80GB",), "NVIDIA A100 datasheet", 2039, A100, A100_SPARSE),
    Card(("A100 80GB PCIe",), "NVIDIA A100 datasheet", 1935, A100, A100_SPARSE),
    Card(
        ("A10",), "NVIDIA A10 datasheet", 600,
        {"fp32": 31.2, "tf32": 62.5, **_half(125), "int8": 250}, {"tf32": 125, **_half(250), "int8": 500},
    ),
    Card(("A30",), "NVIDIA A30 datasheet", 933, {"fp32": 10.3, **_half(165)}, {"tf32": 165}),
    Card(
        ("A40",), "NVIDIA A40 datasheet", 696,
        {"fp32": 37.4, "tf32": 74.8, **_half(149.7), "int8": 299.3}, {"tf32": 149.6, **_half(299.4),
        "int8": 598.6},
    ),
    Card(
        ("GeForce RTX 3090",), "NVIDIA GA102 whitepaper", 936,
        {"fp32": 35.6, "tf32": 35.6, "int8": 284},
    ),
    # Ada
    Card(("L4",), "NVIDIA L4 datasheet", 300, {"fp32": 30.3}, {"tf32": 120, **_half(242), "fp8": 485,
    "int8": 485}),
    Card(
        ("L40",), "NVIDIA L40 datasheet", 864,
        {"fp32": 90.5, "tf32": 90.5, **_half(181.05), "fp8": 362, "int8": 362},
        {"tf32": 181, **_half(362.1), "fp8": 724, "int8": 724},
    ),
    Card(
        ("L40S",), "NVIDIA L40S datasheet", 864,
        {"fp32": 91.6, "tf32": 183, **_half(362.05), "fp8": 733, "int8": 733},
         # 362.05 is printed beside 733, which is not its double
        {"tf32": 366, **_half(733), "fp8": 1466, "int8": 1466},
    ),
    Card(
        ("GeForce RTX 4090",), "NVIDIA Ada whitepaper", 1008,
        {"fp32": 82.6, "tf32": 82.6, **_half(165.2), "fp8": 330.3, "int8": 660.6}, {**_half(330.3),
        "fp8": 660.6},
    ),
    # Hopper
    Card(("H100 80GB HBM3",), "NVIDIA H100 datasheet, SXM", 3350, {"fp64": 67, "fp32": 67}, HOPPER_SXM),
    Card(
        ("H100 PCIe",), "NVIDIA H100 datasheet, PCIe", 2000,
        {"fp64": 51, "fp32": 51}, {"tf32": 756, **_half(1513), "fp8": 3026, "int8": 3026},
    ),
    Card(("H100 NVL",), "NVIDIA H100 datasheet, NVL", 3900, {"fp64": 60, "fp32": 60}, HOPPER_NVL),
    Card(("H200",), "NVIDIA H200 datasheet, SXM", 4800, {"fp64": 67, "fp32": 67}, HOPPER_SXM),
    Card(("H200 NVL",), "NVIDIA H200 datasheet, NVL", 4800, {"fp64": 60, "fp32": 60}, HOPPER_NVL),
    # Blackwell
    Card(("B200",), BLACKWELL, 7700, {"fp64": 37, "fp32": 75}, {"tf32": 2200, **_half(4500), "fp8": 9000,
    "int8": 9000}),
    Card(("GB200",), BLACKWELL, 8000, {"fp64": 40, "fp32": 80}, {"tf32": 2500, **_half(5000), "fp8": 10000,
    "int8": 10000}),
    Card(
        ("GeForce RTX 5090",), "NVIDIA RTX Blackwell whitepaper", 1792,
        {"fp32": 104.8, "tf32": 104.8, **_half(209.5), "fp8": 419, "int8": 838},
    ),
)  # fmt: skip
