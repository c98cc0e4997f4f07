"""The limits of this device, which an operation is measured against: arithmetic per format, and memory traffic."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mpx.measure.environment import environment
from mpx.measure.peaks import card


@dataclass(frozen=True)
class Limits:
    """flops_per_s: of dense products, per format. source: where the figures are from, in words; reason: why one is unknown."""

    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    source: str | None = None
    reason: str | None = None

    def least_s(self, flops: int, moved: int, fmt: str | None) -> tuple[float | None, str | None]:
        """(seconds that the device needs at the least, "arithmetic" or "memory": which of the two takes them); None where unknown."""
        computing = flops / self.flops_per_s[fmt] if flops and fmt in self.flops_per_s else None
        moving = moved / self.bytes_per_s if self.bytes_per_s else None
        if (flops and computing is None) or (moving is None and not flops):
            return None, None
        if moving is None or (computing is not None and computing >= moving):
            return computing, "arithmetic"
        return moving, "memory"


def limits_of(device: torch.device, folders: Iterable[Path] = ()) -> Limits:
    """The vendor's figures for this card; for another device what `mpx.bench` has measured on it and left in one of `folders`."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if (found := card(name)) is not None:
            formats = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
            rates = {fmt: rate * 1e12 for fmt in formats if (rate := found.dense(fmt)) is not None}
            return Limits(rates, found.bandwidth_gb_per_s * 1e9, found.source)
        reason = f"no vendor figures for {name!r}, and no python -m mpx.bench what=formats was run on it"
    else:
        name, reason = environment()["cpu"], "vendors print no such figures for CPUs, and no python -m mpx.bench what=formats was run here"
    for folder in folders:
        if (measured := _measured(folder / "formats.json", device.type, name)) is not None:
            return measured
    return Limits(reason=reason)


def _measured(path: Path, kind: str, name: str) -> Limits | None:
    """What `python -m mpx.bench what=formats` found on a device of that name; None where it did not run on such a one."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        where = found["environment"]["cpu"] if kind == "cpu" else found["environment"]["device"][0]
        rates = {row["format"]: row["tflops_per_s"] * 1e12 for row in found["rows"] if row["tflops_per_s"]}
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # not there, or another version's
        return None
    if found["device"] != kind or where != name or not rates:
        return None
    return Limits(rates, None, "python -m mpx.bench what=formats", "python -m mpx.bench what=formats measures no memory traffic")
