"""Peak memory of this process: on the device as PyTorch's allocator knows it, and resident on the host. 1 GiB = 2^30 bytes."""

import resource
import sys

import torch

GIB = 2**30


def reset_peak(device: torch.device) -> None:
    """Peaks on the device count from now on; the host's peak cannot be reset, it is that of the whole process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, float | str | None]:
    """`peak_allocated_gib` (tensors), `peak_reserved_gib` (what the allocator took from the driver), `peak_rss_gib` (host).

    Kernels' own workspaces outside the allocator and the CUDA context (some 0.5 GiB) are not in them.
    """
    host = {"peak_rss_gib": _peak_rss() / GIB}
    if device.type != "cuda":
        reason = f"PyTorch keeps no allocator statistics on {device.type}"
        nothing = {"peak_allocated_gib": None, "peak_allocated_gib_reason": reason}
        return nothing | {"peak_reserved_gib": None, "peak_reserved_gib_reason": reason} | host
    return {
        "peak_allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
        "peak_reserved_gib": torch.cuda.max_memory_reserved(device) / GIB,
    } | host


def _peak_rss() -> int:
    """Bytes. getrusage counts kilobytes on Linux and bytes on macOS (man 2 getrusage)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
