"""Check whether another program uses the device, or the CPU's cores, while something is measured."""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

# Share of the cores' time that others may use. With more, a speed measured on the CPU does not count.
BUSY = 0.05
# whether no other process computes on the device (None: unknown); the reason if not True
Answer = tuple[bool | None, str | None]


class CpuUse:
    """How much of the time of the cores that this process may use other programs take, from its construction
    on.

    Other programs are all but this process and its children, such as a loader's workers. So the other jobs of
    a sweep count, and so does what a virtual machine's host takes. The kernel counts in ticks of about 4 ms:
    over two seconds the share is right within about 0.01. In a container /proc/stat shows the whole host;
    others outside the container slow its processes down, too.
    """

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), _seconds_of_others()

    def by_others(self) -> float | None:
        """The share, 0 to 1. None where the system does not tell."""
        took, now = time.monotonic() - self._began, _seconds_of_others()
        if self._before is None or now is None or not took:
            return None
        return min(max((now - self._before) / (took * len(os.sched_getaffinity(0))), 0.0), 1.0)


def _seconds_of_others() -> float | None:
    """The time that the cores have spent on other programs since the machine started. Source:
    proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal."""
    try:
        cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        used = [map(int, row[1:4] + row[6:9]) for row in rows if row[0] in cores]
        ticks = sum(map(sum, used)) - sum(map(_cpu_ticks_of, _family()))
        return ticks / os.sysconf("SC_CLK_TCK")
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
        # the newest, or the first that found the device shared
        self._answer: Answer = None, None

    def look(self) -> None:
        if self._answer[0] is not False:
            self._answer = exclusive(self.device)

    def verdict(self, cpu_used_by_others: float | None = None) -> Answer:
        """Check once more. Returns the first result that found the device shared, otherwise the newest.

        cpu_used_by_others: as CpuUse tells, while the speed was measured; it decides for a CPU.
        """
        if self.device.type != "cpu":
            self.look()
            return self._answer
        if cpu_used_by_others is None:
            return None, "it is unknown how much of the CPU other programs used"
        if cpu_used_by_others < BUSY:
            return True, None
        return False, f"other programs used {cpu_used_by_others:.0%} of the CPU"


def exclusive(device: torch.device) -> Answer:
    """For this moment. Processes that this one started (the ranks of its run) do not count as others."""
    if device.type != "cuda":
        return None, f"only for CUDA devices is it known which processes use a {device.type}"
    try:
        processes = _compute_processes(device)
    except Exception as error:
        return None, f"NVML: {error}"
    # reading /proc takes milliseconds
    return exclusive_among(processes, {os.getpid()} if processes == [os.getpid()] else _family())


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

    pynvml.nvmlInit()
    index = device.index if device.index is not None else torch.cuda.current_device()
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def _family() -> set[int]:
    """This process and its children: the ranks of one run. The other jobs of a sweep are siblings and count
    as others.
    """
    me = os.getpid()
    family = {me}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            with suppress(OSError, IndexError):  # the process has ended, or this user may not read it
                stat = Path(f"/proc/{entry}/stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == me:
                    family.add(int(entry))
    return family
