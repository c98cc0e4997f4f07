"""What the processes of one run tell one another outside training: where the run is, and why one of them failed.

Rank 0 finds the run's folder, which every machine must see, and writes in it. The other ranks follow.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpx import channels
from mpx.launch import SRUN, TORCHRUN, Launch
from mpx.whole_file import write_whole

PATIENCE = timedelta(minutes=10)  # for the processes on other machines to start
HEARD = 30.0  # seconds for the others to hear that the run ends before it begins
RUN, READ = "mpx/run", "mpx/read"  # keys of the store
FAILURE = ".rank"  # begins the name of the file in the run's folder in which another rank says why it failed
LOOK = 2.0  # seconds between two looks for that file
GRACE = 5.0  # seconds in which rank 0 ends by itself after another rank has failed
ENDED = ""  # told in place of a folder

LOST = (  # gloo's and NCCL's words for a process that is gone
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
)


class Others:
    """The other processes of rank 0's run. As a context manager it tells them where the block ends without `follow`."""

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

    def follow(self, folder: Path, resume_from: Path | None) -> None:
        """The others train in `folder` as well, and continue from `resume_from`."""
        for left in folder.glob(f"{FAILURE}*"):
            left.unlink()
        if self.launch.by is None:
            channels.share_run(folder, resume_from)  # Lightning starts them later, with this environment
        else:
            self._tell(str(folder.absolute()), resume_from)

    def _tell(self, folder: str, resume_from: Path | None) -> None:
        self.told = True
        self.store = _store(self.launch)
        self.store.set(RUN, "\n".join([folder, str(resume_from.absolute()) if resume_from else ""]))


def told(launch: Launch) -> tuple[Path, Path | None] | None:
    """(folder, checkpoint to continue from) as rank 0 has decided; None where the run ends, or no rank 0 has decided anything."""
    if launch.by is None:
        return channels.shared_run()
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


def report_failure(folder: Path, rank: int, line: str) -> None:
    with suppress(OSError):  # the run has ended
        write_whole(folder / f"{FAILURE}{rank}", line)


def failure_elsewhere(folder: Path) -> str | None:
    """Why another rank failed, if one did."""
    found = sorted(folder.glob(f"{FAILURE}*"))
    lines = [f"in process {file.name.removeprefix(FAILURE)}: {file.read_text()}" for file in found]
    for file in found:
        file.unlink()
    return lines[0] if lines else None


@contextmanager
def ended_with_the_others(folder: Path, conclude: Callable[[str], int]) -> Iterator[None]:
    """Within the block, end this process if another rank has failed and this one does not notice: inside NCCL it would wait for minutes.

    conclude: writes the record with the line that it gets, and returns the exit code.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            if any(folder.glob(f"{FAILURE}*")) and not over.wait(GRACE) and (line := failure_elsewhere(folder)) is not None:
                code = conclude(line)
                sys.stdout.flush()
                os._exit(code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def end_with_rank_0() -> None:
    """End this process, which Lightning has started for rank 0, soon after rank 0: inside NCCL it would wait for minutes."""
    rank_0 = os.getppid()

    def watch() -> None:
        while os.getppid() == rank_0:
            time.sleep(LOOK)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def is_lost(error: BaseException) -> bool:
    """Whether `error` says that another process of the run is gone."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST)
