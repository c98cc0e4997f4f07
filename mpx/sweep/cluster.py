"""Jobs of a sweep on a cluster, or as on one: hydra/launcher=submitit_slurm and submitit_local.

submitit runs `start_child` in a task of the cluster. Slurm may tell a task to go, because another job needs its place or its time is over.
mpx then saves the run (mpx/runs/signals.py), and submitit puts the job back into the queue and counts how often. The job starts again with
the same command, and continues as any cut-off job of a sweep does.
"""

import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.machine import TOLD_TO_GO
from mpx.printing import how_many
from mpx.runs.signals import TERMINATED
from mpx.settings.translate import not_installed

SUBMITTED = ".submitit"  # in the sweep's folder: scripts and output of the jobs, as conf/hydra/launcher says
SLURM, LOCAL = "SlurmLauncher", "LocalLauncher"


def launcher_of(config: DictConfig) -> str | None:
    """SLURM, LOCAL, or None for a launcher that is not submitit's. config: Hydra's."""
    package, _, name = config.launcher["_target_"].rpartition(".")
    return name if "submitit" in package else None


def check_launcher(config: DictConfig) -> None:
    """Raise UserError if submitit, or the cluster that it is to use, is not there, or would start a job several times. config: Hydra's."""
    kind = launcher_of(config)
    if kind is not None and (reason := missing(kind, config.runtime.choices["hydra/launcher"])) is not None:
        raise UserError(reason)
    for key in ("nodes", "tasks_per_node"):
        if kind == LOCAL and (given := config.launcher[key]) != 1:  # no process would know which of them it is
            raise UserError(
                f"hydra.launcher.{key}={given}: hydra/launcher=submitit_local starts one process for each job. Leave it out; "
                "trainer.devices=N starts the others."
            )


def has_plugin(name: str) -> bool:
    """Whether a plugin of Hydra is installed."""
    try:
        return find_spec(f"hydra_plugins.{name}") is not None
    except ModuleNotFoundError:  # no plugin is
        return False


def missing(kind: str, choice: str) -> str | None:
    """What a launcher needs that this machine lacks, and how to get it; None if it is all there. choice: the launcher's name for users."""
    if find_spec("submitit") is None or not has_plugin("hydra_submitit_launcher"):
        return not_installed("hydra/launcher", choice, "submitit")
    absent = [name for name in ("sbatch", "srun", "scontrol", "squeue") if kind == SLURM and shutil.which(name) is None]
    if absent:
        return (
            f"hydra/launcher=submitit_slurm needs {absent[0]}, which is not on this machine. Start the sweep where Slurm is, or use "
            "hydra/launcher=submitit_local."
        )
    return None


def announce(config: DictConfig, jobs: int, what: str) -> None:
    """Say what submitit is to start; its workers print into files of their own. config: Hydra's. what: sweep, or one round of it."""
    if launcher_of(config) is not None:
        print(f"{what} of {how_many(jobs, 'job')} by submitit, which print into {Path(config.sweep.dir) / SUBMITTED}", flush=True)


def wait(job: "subprocess.Popen[bytes]") -> int:
    """Wait for a job in a task of submitit. If the cluster tells it to go, the job saves, and this process ends so that the job is
    requeued. Otherwise, and if it is not requeued, this returns the exit code; -N when signal N ended the job."""
    import submitit

    requeue = signal.getsignal(getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}"))
    told = False

    def go(number: int, frame: Any) -> None:
        nonlocal told
        if not told:
            told = True
            job.terminate()

    for number in TOLD_TO_GO:
        signal.signal(number, go)
    try:
        code = job.wait()
    except KeyboardInterrupt:
        job.wait()  # the job was interrupted as well and writes its record
        raise
    if told and (code == TERMINATED or code < 0):
        _give_back(requeue)
    return code


def _give_back(requeue: Callable[[int, Any], None]) -> None:
    """End this process by submitit's own handler, which requeues. Returns where the user has cancelled the job, or its time was over too
    often."""
    from submitit.core.utils import UncompletedJobError

    for number in TOLD_TO_GO:
        signal.signal(number, signal.SIG_IGN)  # Slurm sends further ones to a job that it requeues
    if _runs():
        with suppress(UncompletedJobError):
            requeue(signal.SIGTERM, None)


def _runs() -> bool:
    """Whether the cluster would let this job run on. Slurm calls a job that scancel ends COMPLETING, and requeues by itself what it has
    preempted."""
    import submitit

    environment = submitit.JobEnvironment()
    if environment.cluster != "slurm":
        return True
    ask = ["squeue", "--noheader", "--format=%T", f"--jobs={environment.job_id}"]
    return subprocess.run(ask, capture_output=True, text=True).stdout.strip() in ("RUNNING", "")


def submission_error(error: BaseException) -> str | None:
    """What submitit says about a job that it could not submit or that vanished; None for another error."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    if not frames or frames[-1].split(".")[0] != "submitit":
        return None
    return " ".join(str(error).split("\n")[0].split())
