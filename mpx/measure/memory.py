"""The peak memory of this process, on the device, as PyTorch's allocator counts it, and on the host; and
memory that ran out. 1 GiB = 2^30 bytes.
"""

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from mpx.errors import causes
from mpx.system.machine import GIB

# in texts of errors that have no class of their own
NO_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")


def reset_host_peak() -> None:
    """Count the host's peak from now on: a run begins, and the process may have had a larger one before. Only
    Linux can.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what a run before has freed
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to what is resident now


def reset_peak(device: torch.device) -> None:
    """Count the device's peak from now on. The host's goes on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, float | str | None]:
    """`peak_allocated_gib` (tensors), `peak_reserved_gib` (what the allocator took from the driver),
    `peak_rss_gib` (host).

    Workspaces of kernels outside the allocator and the CUDA context (about 0.5 GiB) are not included.
    """
    host: dict[str, float | str | None] = {"peak_rss_gib": _peak_rss() / GIB}
    if device.type != "cuda":
        reason = f"PyTorch keeps no allocator statistics on {device.type}"
        nothing = {"peak_allocated_gib": None, "peak_allocated_gib_reason": reason}
        return nothing | {"peak_reserved_gib": None, "peak_reserved_gib_reason": reason} | host
    return {
        "peak_allocated_gib": torch.cuda.max_memory_allocated(device) / GIB,
        "peak_reserved_gib": torch.cuda.max_memory_reserved(device) / GIB,
    } | host


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a device or the host. A compiler's error has the text of the one that it
    wraps.
    """

    def says_so(error: BaseException) -> bool:
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        return known or (isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY))

    return any(map(says_so, causes(error)))


def _peak_rss() -> int:
    """Peak resident memory in bytes. On Linux VmHWM, because getrusage also counts the parent process's
    memory before exec.
    """
    try:
        (line,) = (
            line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")
        )
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others kilobytes
