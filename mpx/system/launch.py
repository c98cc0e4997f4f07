"""The processes of a run on several devices: who started them, which of them this one is, and what they tell
one another outside training.

torchrun starts one process per device, or Slurm's srun. On one machine, `python -m mpx.train` becomes
torchrun itself. Rank 0 finds the run's folder, which every machine must see, and the others follow it.
torchrun ends all processes where one ends; with srun, --kill-on-bad-exit does.
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.system.environment_variables import in_sweep
from mpx.system.machine import TOLD_TO_GO, usable_cores, visible_gpus

TORCHRUN, SRUN = "torchrun", "srun"
PATIENCE = timedelta(minutes=10)  # for the processes on other machines to start
RUN, FAILURE = "mpx/run", "mpx/failure"  # keys of the store
_stores: list[Any] = []  # of this process; rank 0 keeps it open, where srun has started it


@dataclass(frozen=True)
class Launch:
    """How this process was started."""

    by: str | None = None  # torchrun, srun, or None for one that mpx or the user started by itself
    rank: int = 0  # among all processes of the run; 0 writes the record
    local_rank: int = 0  # among those on this machine
    world: int = 1  # number of processes
    local_world: int = 1  # number of processes on each machine


def this_python() -> list[str]:
    """A command that starts this Python, for a module of mpx. It looks for modules where this process does:
    unlike `python -m`, the scripts such as mpx-train leave out the current folder, which may hold a package
    called hydra or mpx."""
    here = "" in sys.path or os.getcwd() in sys.path
    return [sys.executable, *([] if here else ["-P"]), "-m"]


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Raises UserError for tasks of srun whose layout Lightning cannot know."""
    if "TORCHELASTIC_RUN_ID" in environment:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        return Launch(TORCHRUN, *(int(environment[name]) for name in names))
    # A batch script has no number of tasks, nor has a step of one task a second process.
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        if "SLURM_NTASKS_PER_NODE" not in environment:
            raise UserError(
                "srun started several processes without --ntasks-per-node. Use srun --nodes=N "
                "--ntasks-per-node=DEVICES."
            )
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE")
        return Launch(SRUN, *(int(environment[name]) for name in names))
    return Launch()


def processes(trainer: DictConfig) -> int:
    """The number of processes that a run needs on each machine: one per device."""
    devices = trainer.devices
    if devices == "auto":
        return max(1, len(visible_gpus())) if trainer.accelerator != "cpu" else 1
    return devices if isinstance(devices, int) else len(devices)


def become_torchrun(count: int, words: list[str]) -> NoReturn:
    """Go on as torchrun, with the same process id: it starts `python -m mpx.train *words` in `count`
    processes."""
    python = this_python()
    environment = {"OMP_NUM_THREADS": str(max(1, usable_cores() // count))} | os.environ
    environment |= {"PYTHONSAFEPATH": "1"} if "-P" in python else {}
    sys.stdout.flush()
    os.execve(sys.executable, [*python, "mpx.system.launch", str(count), *words], environment)


def leave(code: int) -> NoReturn:
    """End this process.

    Of several, each ends without Python's tidying, in which PyTorch's threads may abort it.
    """
    if launch().world > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """`python -m mpx.system.launch COUNT WORD…`: torchrun, which says nothing of its own and ends with the
    exit code of the run.
    """
    from mpx.runs.signals import TERMINATED, end_with_parent

    logging.disable(logging.CRITICAL)  # the processes say why they end
    for number in TOLD_TO_GO[1:]:  # which torchrun does not know
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))
    if in_sweep():
        end_with_parent()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    count, *words = sys.argv[1:]
    try:
        run.main(["--standalone", "--nproc-per-node", count, "--module", "mpx.train", *words])
    except SignalException as ended:
        sys.exit(128 + (ended.sigval if ended.sigval == signal.SIGINT else signal.SIGTERM))
    except ChildFailedError as failed:
        # torchrun ends the other ranks, some in the same second
        rank, failure = min(
            failed.failures.items(), key=lambda item: (item[1].exitcode == TERMINATED, item[1].timestamp)
        )
        if failure.exitcode < 0:
            print(f"process {rank} of this run was killed by signal {-failure.exitcode}", file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 1)


def all_here(world: int) -> bool:
    """Whether all `world` processes of a user's own loop run on this machine.

    False if that is unknown: of several, only torchrun tells.
    """
    return world == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(world)


def check_layout(devices: int, num_nodes: int) -> None:
    """Raise UserError where the settings want another number of processes than were started.

    devices: on each machine.
    """
    started = launch()
    if started.by is None:
        if num_nodes > 1:
            raise UserError(
                f"trainer.num_nodes={num_nodes}, but one process was started. Start one per device, on "
                "every machine: "
                f"torchrun --nnodes={num_nodes} --nproc-per-node={devices} -m mpx.train …, or srun "
                f"--ntasks-per-node={devices}."
            )
        return
    nodes = started.world // started.local_world
    if (devices, num_nodes) != (started.local_world, nodes):
        raise UserError(
            f"trainer.devices={devices} trainer.num_nodes={num_nodes}, but {started.by} started {nodes} × "
            f"{started.local_world} processes "
            f"(machines × devices). Use trainer.devices={started.local_world} trainer.num_nodes={nodes}."
        )


def refuse_sweep() -> None:
    """Raise UserError where several processes were started, each of which would start all jobs of the
    sweep.
    """
    started = launch()
    if started.world > 1:
        raise UserError(
            f"-m: one process starts all jobs of a sweep, and {started.by} started {started.world}. Use "
            "python -m mpx.train -m …; "
            "trainer.devices=N runs a job on several devices, and hydra/launcher=submitit_slurm on several "
            "machines."
        )


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


if __name__ == "__main__":
    main()
