"""Jobs of a sweep on a cluster, or as on one: hydra/launcher=submitit_slurm and submitit_local.

submitit runs `start_child` in a task of the cluster. Before the time limit it gives a signal: mpx saves the
run, and submitit puts the job back into the queue and counts how often. The job starts again with the same
command, and continues as any cut-off job of a sweep does.
"""

import shutil
import signal
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from traceback import walk_tb
from typing import Any

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.settings.choices import install
from mpx.system.launch import this_python
from mpx.system.machine import TOLD_TO_GO

SUBMITTED = ".submitit"  # in the sweep's folder: scripts and output of the jobs, as conf/hydra/launcher says
SLURM, LOCAL = "SlurmLauncher", "LocalLauncher"


def launcher_of(config: DictConfig) -> str | None:
    """SLURM, LOCAL, or None for a launcher that is not submitit's. config: Hydra's."""
    package, _, name = config.launcher["_target_"].rpartition(".")
    return name if "submitit" in package else None


def check_launcher(config: DictConfig) -> None:
    """Raise UserError if submitit, or the cluster that it is to use, is missing. config: Hydra's."""
    kind = launcher_of(config)
    if kind is None:
        return
    try:
        version("hydra-submitit-launcher")
    except PackageNotFoundError:
        choice = config.runtime.choices["hydra/launcher"]
        raise UserError(f"hydra/launcher={choice} is not installed. {install('submitit')} adds it.") from None
    if kind == SLURM and shutil.which("sbatch") is None:
        raise UserError(
            "hydra/launcher=submitit_slurm needs sbatch, which is not on this machine. Start the sweep where "
            "Slurm is, or use hydra/launcher=submitit_local."
        )


def run(words: list[str], environment: dict[str, str], log: Path) -> int:
    """Run `python -m mpx.train *words` in a task of submitit. Returns the exit code; -N: signal N ended it.

    submitit's signal means that the time is nearly over: the job saves, and submitit's own handler requeues
    it, which ends this process. By another signal (scancel, preemption) the job saves as well, and Slurm
    itself decides.
    """
    import submitit
    from submitit.core.utils import UncompletedJobError

    timeout = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
    requeue, came, command = signal.getsignal(timeout), [], [*this_python(), "mpx.train", *words]
    with open(log, "ab") as output:
        job = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def tell(number: int, frame: Any) -> None:
        came.append(number)
        job.terminate()  # a job that has Slurm's signal as well takes the two for one

    for number in TOLD_TO_GO:
        signal.signal(number, tell)
    code = job.wait()
    if came[:1] == [timeout] and code != 0 and callable(requeue):
        with suppress(UncompletedJobError):  # its time was over too often
            requeue(timeout, None)
    return code


def submission_error(error: BaseException) -> str | None:
    """What submitit says about a job that it could not submit or that vanished; None for another error."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    if not frames or frames[-1].split(".")[0] != "submitit":
        return None
    return " ".join(str(error).split("\n")[0].split())
