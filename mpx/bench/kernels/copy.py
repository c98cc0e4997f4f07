"""Copy bandwidth within one memory. Every byte counts twice: once read, once written."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from mpx.bench.kernels.work import RESULT, Work, ladder, timed
from mpx.measure.matmul import WrongProductError
from mpx.measure.peaks import card

SIZE = {"cpu": 8192, "cuda": 16384}  # size² FP32 numbers: 256 MiB and 1 GiB, which no cache holds
COLUMNS = ("device", "size", "mib", *RESULT, "peak_gb_per_s", "share_of_peak", "peak_gb_per_s_reason")


def measure(device: torch.device, size: int | str, announce: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """One row per tensor, each four times as large as the one before. size: the largest holds size² FP32 numbers."""
    for n in ladder(SIZE[device.type] if size == "auto" else size):
        announce(f"a copy of {n}×{n} FP32 numbers")
        row = {"device": device.type, "size": n, "mib": 4 * n * n / 2**20} | timed(lambda n=n: work(n, device), device)
        row |= _beside_peak(row["gb_per_s"], device)
        yield {column: row[column] for column in COLUMNS}


def work(n: int, device: torch.device) -> Work:
    """Copies n² FP32 numbers to another tensor."""
    source = torch.randn(n, n, device=device)
    target = torch.empty_like(source)

    def error(out: torch.Tensor) -> float:
        if not torch.equal(out, source):
            raise WrongProductError("the copy differs from its source")
        return 0.0

    return Work(lambda: target.copy_(source), error, moved=2 * source.numel() * source.element_size())


def _beside_peak(rate: float | None, device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"peak_gb_per_s": None, "share_of_peak": None, "peak_gb_per_s_reason": "no table of the memory of CPUs' machines"}
    name = torch.cuda.get_device_name(device)
    found = card(name)
    if found is None:
        return {"peak_gb_per_s": None, "share_of_peak": None, "peak_gb_per_s_reason": f"no vendor figures for {name!r}"}
    peak = found.bandwidth_gb_per_s
    return {"peak_gb_per_s": peak, "share_of_peak": rate / peak if rate else None, "peak_gb_per_s_reason": None}
