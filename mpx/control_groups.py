"""The limits that Linux sets for a group of processes, as containers, Slurm and systemd use them. Imports nothing heavy.

A group's limit holds for the groups below it, too. In version 1 each controller has groups of its own. Sources: docs.kernel.org,
admin-guide/cgroup-v2, admin-guide/cgroup-v1/memory, scheduler/sched-bwc.
"""

from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def memory_limit() -> int | None:
    """In bytes; None where there is none. Version 1 has a number far above any machine's memory for none."""
    files = [group / "memory.max" for group in _groups("")] + [group / "memory.limit_in_bytes" for group in _groups("memory")]
    return min((int(limit) for limit in map(_text, files) if limit.isdecimal()), default=None)


def cpu_quota() -> float | None:
    """The cores whose whole time the processes may take together; None where there is no limit."""
    shares = [_text(group / "cpu.max").partition(" ")[::2] for group in _groups("")]
    shares += [(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")) for group in _groups("cpu")]
    return min((int(quota) / int(period) for quota, period in shares if quota.isdecimal()), default=None)


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those above it. controller: of version 1; empty: version 2.

    A container may see the name that its group has on the host, while the group is mounted as the root.
    """
    mounted = MOUNTED / controller
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, name = line.split(":", 2)
        if controller in controllers.split(","):
            group = mounted / name.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mounted))


def _text(file: Path) -> str:
    """Empty where it cannot be read, as of a controller that is off."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
