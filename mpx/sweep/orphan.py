"""The folder of a sweep whose first process is killed: the next sweep removes it. Its jobs end by mpx/runs/watch.py."""

import glob
import os
import shutil
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from mpx import environment_variables
from mpx.sweep.cluster import SUBMITTED
from mpx.sweep.job_report import each_report
from mpx.sweep.progress import read_total

OWNER = "owner.lock"  # in the sweep's folder, held by the process that the user started


def owned(sweep: Path) -> BaseFileLock:
    """Lock the sweep's folder until the lock is released, or this process ends."""
    return FileLock(sweep / OWNER).acquire().lock


def remove_left(sweep: Path) -> None:
    """Remove the folders of killed sweeps beside that of this one: the records of their jobs say all that the next sweep needs.

    Those of other machines stay, because not every file system shows their locks, and those of Slurm's jobs, which outlive their sweep.
    """
    if sweep.name != environment_variables.sweep_name():  # hydra.sweep.dir is a folder of the user's
        return
    machine = sweep.name.rpartition("-")[0]
    for folder in sweep.parent.glob(f"{glob.escape(machine)}-*"):
        if folder != sweep and _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether the sweep was cut off and none of its processes is left. A sweep that has ended keeps its folder if jobs have failed."""
    number = folder.name.rpartition("-")[2]
    if not number.isdecimal() or _runs(int(number)) or not (folder / OWNER).is_file() or (folder / SUBMITTED).exists():
        return False
    try:
        with FileLock(folder / OWNER, timeout=0):
            return sum(1 for _ in each_report(folder)) < read_total(folder)
    except (Timeout, OSError, ValueError, KeyError):  # in use, just removed, or damaged
        return False


def _runs(pid: int) -> bool:
    """Whether there is such a process on this machine. A sweep that has just made its folder is about to lock it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
