"""Whether another program uses the device or the CPU while a run is measured."""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

BUSY = 0.1  # of all cores, by others: threads then wait for one that has to share its core


class ExclusivityChecks:
    """Looks from time to time whether another process computes on `device`."""

    def __init__(self, device: torch.device):
        self.device = device
        self._looks: list[tuple[bool | None, str | None]] = []

    def look(self) -> None:
        self._looks.append(exclusive(self.device))

    def verdict(self) -> tuple[bool | None, str | None]:
        """As `exclusive`, over all looks and one more: the first at which the device was shared, else the newest."""
        self.look()
        return next((look for look in self._looks if look[0] is False), self._looks[-1])


def exclusive(device: torch.device) -> tuple[bool | None, str | None]:
    """Whether no other process computes on `device`, else None, and the reason when it is not plainly so.

    Processes that we started (the ranks of one run) are not others. Looked up at this moment only.
    """
    if device.type != "cuda":
        return None, f"a {device.type} is always shared with the operating system"
    try:
        processes = _compute_processes(device)
    except Exception as error:
        return None, f"NVML: {error}"
    return judge(processes, {os.getpid()} if processes == [os.getpid()] else _family())  # reading /proc takes milliseconds


def cpu_busy(seconds: float = 0.2) -> float | None:
    """Share of all CPU cores that is busy while this process sleeps, 0 to 1; None where the operating system does not tell."""
    try:
        before = _cpu_ticks()
        time.sleep(seconds)
        after = _cpu_ticks()
    except (OSError, ValueError):
        return None
    spent = [now - then for now, then in zip(after, before, strict=True)]
    return 1 - sum(spent[3:5]) / sum(spent) if sum(spent) else None  # idle, and idle while waiting for a disk


def _cpu_ticks() -> list[int]:
    """Of all cores together: user, nice, system, idle, iowait, irq, softirq, steal. Source: proc_stat(5)."""
    with open("/proc/stat") as lines:
        return [int(field) for field in lines.readline().split()[1:9]]


def judge(processes: list[int], ours: set[int]) -> tuple[bool | None, str | None]:
    """`processes`: ids that NVML lists on the device; `ours`: those of this run."""
    others = [pid for pid in processes if pid not in ours]
    if not others:
        return True, None
    if not ours & set(processes):
        # In a container NVML shows the host's numbers, or hides them: ours is then one of the others.
        if len(processes) == 1:
            return True, "one process on the device, under a number of another namespace: taken for this one"
        return None, f"{len(processes)} processes on the device under numbers of another namespace"
    return False, f"{len(others)} other process{'es' if len(others) > 1 else ''} on the device"


def _compute_processes(device: torch.device) -> list[int]:
    import pynvml

    pynvml.nvmlInit()
    index = device.index if device.index is not None else torch.cuda.current_device()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def _family() -> set[int]:
    """This process and those that it started: the ranks of one run. A sweep's other jobs are siblings, and do count as others."""
    me = os.getpid()
    found = {me}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            with suppress(OSError, IndexError):  # ended meanwhile, or not ours to ask
                stat = Path(f"/proc/{entry}/stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == me:
                    found.add(int(entry))
    return found
