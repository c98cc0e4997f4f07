"""Environment variables through which the processes of one command talk. No other Python file of mpx names
one of them.

A process that another library starts (a launcher's worker, a rank of Lightning's) gets only a command line
and the environment.

| variable         | written by                               | read by                                                          |
|------------------|------------------------------------------|------------------------------------------------------------------|
| MPX_SWEEP        | the process that the user started        | conf/train.yaml: the name of the sweep's folder                  |
| MPX_SWEEP_GPUS   | the process that the user started        | workers of submitit_local, from which submitit hides the GPUs    |
| MPX_SWEEP_REPORT | a worker, for each of its jobs           | the job: it is in a sweep, and this file is for its report       |
| MPX_RUN_REPORT   | mpx.run, for the run that it starts      | the run: this file is for its report                             |
| MPX_TRACEBACK    | the user; or a front door, which copies  | every process: 1 shows the traceback of a failed run; a job also |
|                  | HYDRA_FULL_ERROR before mpx sets it to 1 | gets it as its HYDRA_FULL_ERROR                                  |

MPX_DATA and MPX_CACHE are settings of the user, which conf/data/*.yaml read. mpx/system/launch.py reads what
torchrun and Slurm tell a process.
"""  # noqa: E501

import os
import socket
from pathlib import Path

SWEEP = "MPX_SWEEP"
SWEEP_GPUS = "MPX_SWEEP_GPUS"
SWEEP_REPORT = "MPX_SWEEP_REPORT"
RUN_REPORT = "MPX_RUN_REPORT"
TRACEBACK = "MPX_TRACEBACK"
HYDRA_FULL_ERROR = "HYDRA_FULL_ERROR"  # Hydra's own
VISIBLE = "CUDA_VISIBLE_DEVICES"  # CUDA's own


def start_sweep() -> None:
    """Note that the user started this process.

    The name contains the machine, because other machines may write in the same folder.
    """
    os.environ[SWEEP] = f"{socket.gethostname()}-{os.getpid()}"
    _copy(VISIBLE, SWEEP_GPUS)


def show_users_gpus() -> None:
    """Let this process see the GPUs that are visible to the process that the user started."""
    _copy(SWEEP_GPUS, VISIBLE)


def _copy(name: str, to: str) -> None:
    os.environ.pop(to, None)
    if name in os.environ:
        os.environ[to] = os.environ[name]


def for_run(variable: str, report: Path) -> dict[str, str]:
    """The variables of a run that this process starts. report: the file in which it says how it ended.
    variable: SWEEP_REPORT or RUN_REPORT.
    """
    return {variable: str(report), HYDRA_FULL_ERROR: os.environ.get(TRACEBACK, "0")}


def in_sweep() -> bool:
    """Whether this process is a job of a sweep."""
    return SWEEP_REPORT in os.environ


def report_file() -> Path | None:
    """The file for the report of this run; None where nobody waits for it."""
    name = os.environ.get(SWEEP_REPORT) or os.environ.get(RUN_REPORT)
    return Path(name) if name else None


def let_hydra_raise() -> None:
    """Make Hydra raise its errors, instead of printing a message and exiting.

    MPX_TRACEBACK keeps what the user set.
    """
    # Already set in a process that mpx started.
    os.environ.setdefault(TRACEBACK, os.environ.get(HYDRA_FULL_ERROR, "0"))
    os.environ[HYDRA_FULL_ERROR] = "1"


def shows_traceback() -> bool:
    return os.environ.get(TRACEBACK) == "1"
