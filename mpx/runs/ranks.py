"""What the processes of one run tell one another outside training: where the run is, and why one of them ends.

Rank 0 finds the run's folder, which every machine must see, and writes in it. The other ranks follow.
"""

import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpx import environment_variables
from mpx.launch import SRUN, TORCHRUN, Launch
from mpx.whole_file import write_whole

PATIENCE = timedelta(minutes=10)  # for the processes on other machines to start
HEARD = 30.0  # seconds for the others to hear that the run ends before it begins
RUN, READ = "mpx/run", "mpx/read"  # keys of the store
ENDING = ".rank"  # another rank that ends before the run writes why into the file .rank<N> of the run's folder
ENDED = ""  # told in place of a folder

LOST = (  # gloo's and NCCL's words for a process that is gone
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)


class Others:
    """The other processes of rank 0's run. As a context manager it tells them that the run ends, if the block ends without `train_in`."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.store: Any = None
        self.told = launch.by is None

    def __enter__(self) -> "Others":
        return self

    def __exit__(self, *error: Any) -> None:
        if self.told:
            return
        self._tell(ENDED, None)
        end = time.monotonic() + HEARD
        while self.store.add(READ, 0) < self.launch.world - 1 and time.monotonic() < end:
            time.sleep(0.1)

    def train_in(self, folder: Path, resume_from: Path | None) -> None:
        """The others train in `folder` as well, and continue from `resume_from`."""
        forget_ends(folder)
        if self.launch.by is None:
            environment_variables.share_run(folder, resume_from)  # Lightning starts them later, with this environment
        else:
            self._tell(str(folder.absolute()), resume_from)

    def _tell(self, folder: str, resume_from: Path | None) -> None:
        self.told = True
        self.store = _store(self.launch)
        self.store.set(RUN, "\n".join([folder, str(resume_from.absolute()) if resume_from else ""]))


def told(launch: Launch) -> tuple[Path, Path | None] | None:
    """(folder, checkpoint to continue from) as rank 0 has decided; None where the run ends, or no rank 0 has decided anything."""
    if launch.by is None:
        return environment_variables.shared_run()
    store = _store(launch)
    folder, resume_from = store.get(RUN).decode().split("\n")
    store.add(READ, 1)
    return (Path(folder), Path(resume_from) if resume_from else None) if folder != ENDED else None


def _store(launch: Launch) -> Any:
    """The store of torchrun's agent, or one that rank 0 opens and PyTorch's process group then shares."""
    from torch.distributed import rendezvous

    environment = cluster_environment(launch)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
    store, _, _ = next(rendezvous("env://", launch.rank, launch.world, timeout=PATIENCE))
    return store


def cluster_environment(launch: Launch) -> Any:
    """Lightning's description of the processes. Lightning would guess it, and take a batch script of Slurm for a process of srun.

    Lightning requeues nothing: it would save in a file of its own. mpx/sweep/cluster.py does.
    """
    from pytorch_lightning.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment

    if launch.by == SRUN:
        return SLURMEnvironment(auto_requeue=False)
    return TorchElasticEnvironment() if launch.by == TORCHRUN else LightningEnvironment()


def report_end(folder: Path, rank: int, failure: str = "") -> None:
    """Tell rank 0 that this process ends before the run does. failure: why; empty where a signal has told it to."""
    with suppress(OSError):  # the run has ended
        write_whole(folder / f"{ENDING}{rank}", failure)


def ends_elsewhere(folder: Path) -> bool:
    """Whether another rank has ended before the run."""
    return any(folder.glob(f"{ENDING}*"))


def forget_ends(folder: Path) -> None:
    for file in folder.glob(f"{ENDING}*"):
        file.unlink(missing_ok=True)


def failure_elsewhere(folder: Path) -> str | None:
    """Why another rank failed; empty where one has only been told to end, None where none has ended."""
    found = sorted(folder.glob(f"{ENDING}*"))
    failures = [f"in process {file.name.removeprefix(ENDING)}: {line}" for file in found if (line := file.read_text())]
    forget_ends(folder)
    return failures[0] if failures else "" if found else None


def is_lost(error: BaseException) -> bool:
    """Whether `error` says that another process of the run is gone."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST)
