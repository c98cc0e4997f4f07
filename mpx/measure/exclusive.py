"""Check whether another program uses the device or the CPU while a run is measured."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

# share of all cores that others may use; with more, all threads wait for the one that shares its core
BUSY = 0.1
# whether no other process computes on the device (None: unknown); the reason if not True
Answer = tuple[bool | None, str | None]


class OtherPrograms:
    """How much of this process's CPU cores other programs use, from its construction on."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), self._now()

    def share(self) -> float | None:
        """Of the time of all cores, 0 to 1. The ranks of one run are not told from other programs. None where
        the system does not tell.
        """
        took, now = time.monotonic() - self._began, self._now()
        if self._before is None or now is None or not took:
            return None
        others = now - self._before
        return min(max(others / (took * len(os.sched_getaffinity(0))), 0.0), 1.0)

    @staticmethod
    def _now() -> float | None:
        """Seconds that the cores have spent on other programs."""
        try:
            cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            ticks = os.sysconf("SC_CLK_TCK")
            lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
            busy = sum(
                sum(map(int, fields[1:9])) - sum(map(int, fields[4:6]))
                for fields in lines
                if fields[0] in cores
            )
            return busy / ticks - sum(_cpu_ticks_of(process) for process in _family()) / ticks
        except (AttributeError, OSError, ValueError):  # not Linux
            return None


def _cpu_ticks_of(process: int) -> int:
    """What a process and its children that have ended have used. Source: proc_pid_stat(5), utime to
    cstime.
    """
    try:
        return sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
    except (OSError, ValueError):  # it has just ended
        return 0


class ExclusivityChecks:
    """Checks at several moments whether another process computes on `device`."""

    def __init__(self, device: torch.device):
        self.device = device
        self.cpu = OtherPrograms()
        self._shared: Answer | None = None  # the first result that found the device shared
        self._newest: Answer = None, None

    def look(self) -> None:
        self._newest = exclusive(self.device)
        if self._newest[0] is False and self._shared is None:
            self._shared = self._newest

    def refute(self, reason: str) -> bool:
        """The device was shared, as no look can tell. Returns whether that is new."""
        new = self._shared is None
        self._shared = self._shared or (False, reason)
        return new

    def verdict(self) -> Answer:
        """Check once more. Returns the first result that found the device shared, otherwise the newest."""
        self.look()
        return self._shared or self._newest


def exclusive(device: torch.device) -> Answer:
    """For this moment. Processes that this one started (the ranks of its run) do not count as others."""
    if device.type != "cuda":
        return None, f"a {device.type} is always shared with the operating system"
    try:
        processes, by_mps = _compute_processes(device), _mps_clients(device)
    except Exception as error:
        return None, f"NVML: {error}"
    if by_mps:
        return False, (
            "NVIDIA MPS serves the device, and lets kernels of several programs run at the same time"
        )
    # reading /proc takes milliseconds
    return exclusive_among(processes, {os.getpid()} if processes == [os.getpid()] else _family())


def cpu_busy(seconds: float = 0.2) -> float | None:
    """The share of all CPU cores, 0 to 1, that is busy while this process sleeps; None where the operating
    system does not tell.
    """
    try:
        before = _cpu_ticks()
        time.sleep(seconds)
        after = _cpu_ticks()
    except (OSError, ValueError):
        return None
    spent = [now - then for now, then in zip(after, before, strict=True)]
    return 1 - sum(spent[3:5]) / sum(spent) if sum(spent) else None  # idle, and idle while waiting for a disk


def _cpu_ticks() -> list[int]:
    """For all cores together: user, nice, system, idle, iowait, irq, softirq, steal. Source: proc_stat(5)."""
    with open("/proc/stat") as lines:
        return [int(field) for field in lines.readline().split()[1:9]]


def exclusive_among(processes: list[int], ours: set[int]) -> Answer:
    """As `exclusive`. processes: the ids that NVML lists on the device. ours: the ids of this run."""
    others = [pid for pid in processes if pid not in ours]
    if not others:
        return True, None
    if not ours & set(processes):
        # In a container NVML shows the host's process ids, so that ours is among the others, or shows none.
        if len(processes) == 1:
            return True, "one process on the device, under a number of another namespace: taken for this one"
        return None, f"{len(processes)} processes on the device under numbers of another namespace"
    return False, f"{len(others)} other process{'es' if len(others) > 1 else ''} on the device"


def _compute_processes(device: torch.device) -> list[int]:
    import pynvml

    return [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(_handle(device))]


def _mps_clients(device: torch.device) -> list[int]:
    """The processes that reach the device through NVIDIA MPS. NVML lists them apart from the others."""
    import pynvml

    with suppress(pynvml.NVMLError):  # a driver without MPS has no such list
        return [process.pid for process in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(_handle(device))]
    return []


def _handle(device: torch.device) -> Any:
    """NVML's name for the device."""
    import pynvml

    pynvml.nvmlInit()
    index = device.index if device.index is not None else torch.cuda.current_device()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")


def _family() -> set[int]:
    """This process and its children: the ranks of one run. The other jobs of a sweep are siblings and count
    as others.
    """
    me = os.getpid()
    found = {me}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            with suppress(OSError, IndexError):  # the process has ended, or this user may not read it
                stat = Path(f"/proc/{entry}/stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == me:
                    found.add(int(entry))
    return found
