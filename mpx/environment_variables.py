"""Environment variables through which the processes of one command talk. No other Python file of mpx names one of them.

A process that another library starts (a launcher's worker, a rank of Lightning's) gets only a command line and the environment.

| variable         | written by                               | read by                                                          |
|------------------|------------------------------------------|------------------------------------------------------------------|
| MPX_SWEEP        | the process that the user started        | conf/train.yaml: the name of the sweep's folder                  |
| MPX_SWEEP_GPUS   | the process that the user started        | workers of submitit_local, from which submitit hides the GPUs    |
| MPX_SWEEP_REPORT | a worker, for each of its jobs           | the job: it is in a sweep, and this file is for its report       |
| MPX_SWEEP_PARENT | a worker or its starter, for each job    | the job: it ends when this process dies                          |
| MPX_SWEEP_SPEED  | a worker, or the sweep's first process   | the job: `beside`, other jobs use its device, so that its speed  |
|                  |                                          | does not count; `alone`, it is to measure nothing but its speed  |
| MPX_RUN_FOLDER   | rank 0 of a run on several devices       | the other ranks: where rank 0 writes                             |
| MPX_RUN_PROCESS  | rank 0                                   | the other ranks: they end when this process dies                 |
| MPX_RESUME_FROM  | rank 0, where it continues a checkpoint  | the other ranks                                                  |
| MPX_TRACEBACK    | the user; or a front door, which copies  | every process: 1 shows the traceback of a failed run; a job also |
|                  | HYDRA_FULL_ERROR before mpx sets it to 1 | gets it as its HYDRA_FULL_ERROR                                  |

MPX_DATA and MPX_CACHE are settings of the user, which conf/data/*.yaml read. mpx/launch.py reads what torchrun and Slurm tell a process.
"""

import os
import socket
from pathlib import Path
from typing import Literal

SWEEP = "MPX_SWEEP"
SWEEP_GPUS = "MPX_SWEEP_GPUS"
SWEEP_REPORT = "MPX_SWEEP_REPORT"
SWEEP_PARENT = "MPX_SWEEP_PARENT"
SWEEP_SPEED = "MPX_SWEEP_SPEED"
RUN_FOLDER = "MPX_RUN_FOLDER"
RUN_PROCESS = "MPX_RUN_PROCESS"
RESUME_FROM = "MPX_RESUME_FROM"
TRACEBACK = "MPX_TRACEBACK"
HYDRA_FULL_ERROR = "HYDRA_FULL_ERROR"  # Hydra's own
VISIBLE = "CUDA_VISIBLE_DEVICES"  # CUDA's own


def start_sweep() -> None:
    """Note that the user started this process. The name contains the machine, because other machines may write in the same folder."""
    os.environ[SWEEP] = f"{socket.gethostname()}-{os.getpid()}"
    _copy(VISIBLE, SWEEP_GPUS)


def sweep_name() -> str:
    """The name of the sweep's folder, which contains the machine and the process id."""
    return os.environ[SWEEP]


def show_users_gpus() -> None:
    """Let this process see the GPUs that are visible to the process that the user started."""
    _copy(SWEEP_GPUS, VISIBLE)


def _copy(name: str, to: str) -> None:
    os.environ.pop(to, None)
    if name in os.environ:
        os.environ[to] = os.environ[name]


def for_job(report: Path) -> dict[str, str]:
    """The variables of a job that this process starts and waits for. report: the file in which the job says how it ended."""
    return {SWEEP_REPORT: str(report), SWEEP_PARENT: str(os.getpid()), HYDRA_FULL_ERROR: os.environ.get(TRACEBACK, "0")}


def speed_is_measured(how: Literal["beside", "alone"]) -> dict[str, str]:
    """The variable that tells a job to measure its speed `beside` other jobs, or to measure nothing else (`alone`)."""
    return {SWEEP_SPEED: how}


def measures_beside_others() -> bool:
    """Whether other jobs of the sweep use this job's device."""
    return os.environ.get(SWEEP_SPEED) == "beside"


def measures_alone() -> bool:
    """Whether this process is to measure nothing but the speed of its settings."""
    return os.environ.get(SWEEP_SPEED) == "alone"


def report_file() -> Path | None:
    """The file for this job's report; None outside a sweep."""
    return Path(os.environ[SWEEP_REPORT]) if SWEEP_REPORT in os.environ else None


def parent_process() -> int:
    """The id of the process that waits for this job."""
    return int(os.environ[SWEEP_PARENT])


def share_run(folder: Path, resume_from: Path | None) -> None:
    """Tell the further ranks that Lightning starts, with this environment, what rank 0 has decided."""
    os.environ[RUN_FOLDER] = str(folder)
    os.environ[RUN_PROCESS] = str(os.getpid())
    os.environ.pop(RESUME_FROM, None)
    if resume_from is not None:
        os.environ[RESUME_FROM] = str(resume_from)


def shared_run() -> tuple[Path, Path | None] | None:
    """(folder, checkpoint to continue from) as rank 0 has decided; None in a process that no rank 0 started."""
    if RUN_FOLDER not in os.environ:
        return None
    return Path(os.environ[RUN_FOLDER]), Path(os.environ[RESUME_FROM]) if RESUME_FROM in os.environ else None


def rank_0() -> int:
    """The id of the process that has started this rank."""
    return int(os.environ[RUN_PROCESS])


def let_hydra_raise() -> None:
    """Make Hydra raise its errors, instead of printing a message and exiting. MPX_TRACEBACK keeps what the user set."""
    os.environ.setdefault(TRACEBACK, os.environ.get(HYDRA_FULL_ERROR, "0"))  # already set in a process that mpx started
    os.environ[HYDRA_FULL_ERROR] = "1"


def shows_traceback() -> bool:
    return os.environ.get(TRACEBACK) == "1"
