"""The processes of one run, which torchrun or Slurm's srun starts: rank 0 finds the run's folder, and the
others follow it.

Every machine must see the folder. torchrun ends all processes where one ends; with srun, --kill-on-bad-exit
does.
"""

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpx.system.launch import SRUN, TORCHRUN, Launch

PATIENCE = timedelta(minutes=10)  # for the processes on other machines to start
RUN, FAILURE = "mpx/run", "mpx/failure"  # keys of the store
_stores: list[Any] = []  # of this process; rank 0 keeps it open, where srun has started it


def tell(launch: Launch, folder: Path | None, resume_from: Path | None = None) -> None:
    """In rank 0: the others train in `folder` as well, and continue from `resume_from`.

    None: the run ends before it begins.
    """
    if launch.world > 1:
        paths = [] if folder is None else [folder, *([] if resume_from is None else [resume_from])]
        _store(launch).set(RUN, "\n".join(str(path.absolute()) for path in paths))


def hear(launch: Launch) -> list[Path]:
    """In another rank: the run's folder, and the checkpoint to continue from if there is one; empty where the
    run ends."""
    try:
        return [Path(line) for line in _store(launch).get(RUN).decode().splitlines()]
    except RuntimeError:  # rank 0 is gone
        return []


def tell_failure(launch: Launch, line: str) -> None:
    """In another rank: rank 0 records why this one failed."""
    with suppress(RuntimeError):  # rank 0 is gone
        _stores[-1].set(FAILURE, f"in process {launch.rank}: {line}")


def hear_failure() -> str | None:
    """In rank 0: why another rank failed; None if none has said so."""
    with suppress(RuntimeError):  # the store's process is gone
        if _stores and _stores[-1].check([FAILURE]):
            return _stores[-1].get(FAILURE).decode()
    return None


def _store(launch: Launch) -> Any:
    """The store of torchrun's agent, or one that rank 0 opens and PyTorch's process group then shares."""
    from torch.distributed import rendezvous

    environment = cluster_environment(launch)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = (
        environment.main_address,
        str(environment.main_port),
    )
    store, _, _ = next(rendezvous("env://", launch.rank, launch.world, timeout=PATIENCE))
    _stores.append(store)
    return store


def cluster_environment(launch: Launch) -> Any:
    """Lightning's description of the processes. Lightning would guess it, and take a batch script of Slurm
    for a process of srun.

    Lightning requeues nothing: it would save in a file of its own. mpx/sweep/cluster.py does.
    """
    from pytorch_lightning.plugins.environments import (
        LightningEnvironment,
        SLURMEnvironment,
        TorchElasticEnvironment,
    )

    if launch.by == SRUN:
        return SLURMEnvironment(auto_requeue=False)
    return TorchElasticEnvironment() if launch.by == TORCHRUN else LightningEnvironment()
