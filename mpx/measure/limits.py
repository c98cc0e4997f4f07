"""The limits of this device for one operation: arithmetic per format, and memory traffic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mpx.measure.ceilings import ceilings, measured_here
from mpx.measure.matmul import PRODUCT_FORMATS
from mpx.measure.peaks import card


@dataclass(frozen=True)
class Limits:
    """flops_per_s: of dense products, per format. source: where the figures come from, in words. reason: why one is unknown."""

    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    source: str | None = None
    reason: str | None = None

    def least_s(self, flops: int, moved: int, fmt: str | None) -> tuple[float | None, str | None]:
        """Returns (the least seconds that the device needs, "arithmetic" or "memory" for what limits it), or (None, None) where unknown."""
        computing = flops / self.flops_per_s[fmt] if flops and fmt in self.flops_per_s else None
        moving = moved / self.bytes_per_s if self.bytes_per_s else None
        if (flops and computing is None) or (moving is None and not flops):
            return None, None
        if moving is None or (computing is not None and computing >= moving):
            return computing, "arithmetic"
        return moving, "memory"


def limits_of(device: torch.device, output_dir: str | Path) -> Limits:
    """The vendor's figures where the card is known. For formats that its data sheet leaves out, and for other devices, what `mpx.bench`
    measured here and wrote to output_dir/bench."""
    measured = ceilings(output_dir, device)
    if device.type == "cuda" and (found := card(torch.cuda.get_device_name(device))) is not None:
        rates = {fmt: rate * 1e12 for fmt in PRODUCT_FORMATS if (rate := found.dense(fmt)) is not None}
        left_out = {fmt: rate * 1e12 for fmt, rate in measured.dense.items() if fmt not in rates} if measured else {}
        source = f"{found.source}; {', '.join(left_out)} {measured_here(measured)}" if left_out else found.source
        return Limits(rates | left_out, found.bandwidth_gb_per_s * 1e9, source)
    if measured is None:
        return Limits(reason="no vendor's figures for this device and none measured: run python -m mpx.bench what=gemm and what=copy")
    rates = {fmt: rate * 1e12 for fmt, rate in measured.dense.items()}
    traffic = measured.gb_per_s * 1e9 if measured.gb_per_s else None
    lacks = [what for what, there in (("copy", traffic), ("gemm", rates)) if not there]
    reason = " and ".join(f"python -m mpx.bench what={what} was not run here" for what in lacks) or None
    return Limits(rates, traffic, measured_here(measured), reason)
