"""Read a trace file of torch.profiler: when the device computed, and with which kernels.

Source of the names: Kineto's libkineto/src/output_json.cpp.
"""

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Busy:
    """Times are in milliseconds and of all traced steps together."""

    busy_ms: float  # in which at least one kernel or copy ran
    longest_gap_ms: float  # between two of them, in which none ran
    launches: int  # kernels and copies
    kernels: dict[str, tuple[int, float]]  # name -> (calls, milliseconds); the most expensive first


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a .json.gz trace."""
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def busy(events: list[dict[str, Any]]) -> Busy | None:
    """Returns None where no device was traced. Kernels that overlap on several streams count once in `busy_ms`."""
    found = sorted((event["ts"], event["ts"] + event["dur"], event["name"]) for event in events if event.get("cat") in ON_DEVICE)
    if not found:
        return None
    total = longest = 0.0
    reached = found[0][0]
    kernels: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for start, end, name in found:
        longest = max(longest, start - reached)
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
        times, ms = kernels[name]
        kernels[name] = times + 1, ms + (end - start) / 1e3
    ordered = dict(sorted(kernels.items(), key=lambda item: -item[1][1]))
    return Busy(total / 1e3, longest / 1e3, len(found), ordered)
