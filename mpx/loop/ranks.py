"""What the Recorders in the processes of one run know of one another, through the process group's store.

A collective would wait for ever for a process that has no Recorder; the store says which have one.
"""

import os
import time
from collections import Counter
from contextlib import suppress

import torch.distributed as dist

from mpx.errors import UserError
from mpx.launch import launch
from mpx.measure.environment import host_id
from mpx.processes import rank_and_world

WAIT_S = 60  # for what another process has not told yet

_made: Counter[str] = Counter()  # run -> Recorders of it so far, as many in each process


class Ranks:
    """The processes of one run, in the order `join`, `leave` (ranks above 0). run: the same in each: study, setting and seed."""

    def __init__(self, run: str):
        self.rank, self.world = _place()
        _made[run] += 1
        self._name = f"mpx.Recorder/{run}/{_made[run]}"
        self._store: dist.Store | None = None  # None without a process group

    def check(self) -> None:
        """Raise UserError if this process is not the rank that it was taken for."""
        if (now := rank_and_world()) != (self.rank, self.world):
            raise UserError(
                f"mpx.Recorder: this process was rank {self.rank} of {self.world} when its `with` block began, and is rank {now[0]} of "
                f"{now[1]} now. Call torch.distributed.init_process_group, or make TrainingArguments, before the block."
            )

    def join(self, folder: str) -> None:
        """This process has a Recorder. folder: the run's, which rank 0 tells. Does nothing before there is a process group."""
        if self._store is None and rank_and_world()[1] > 1:
            self._store = dist.group.WORLD.get_group_store()
            self._store.set(self._key(self.rank), folder if self.rank == 0 else host_id() or "")

    def folder(self) -> str:
        """The run's folder, in ranks above 0. Waits until rank 0 has found it."""
        if self._store is None:
            raise UserError("mpx.Recorder: rank 0 tells the folder once torch.distributed.init_process_group has been called.")
        if not self._told(self._key(0), WAIT_S):
            raise UserError("mpx.Recorder: rank 0 has none of this setting, so there is no folder. Make one in every process.")
        return self._store.get(self._key(0)).decode()

    def hosts(self) -> list[str | None] | None:
        """Those of all ranks; None if one has no Recorder."""
        keys = [self._key(rank) for rank in range(1, self.world)]
        return [host_id(), *(self._store.get(key).decode() for key in keys)] if all(map(self._told, keys)) else None

    def leave(self, steps: int, samples: int) -> None:
        """The block ends in this rank above 0, which had `samples` samples in `steps` timed steps."""
        with suppress(RuntimeError):  # rank 0 has ended, and the store with it
            self._store.set(self._end(self.rank), f"{steps} {samples}")

    def samples(self, steps: int, mine: int, wait_s: float) -> tuple[list[int], str | None]:
        """(samples of each process in the same timed steps, None), or ([], why they are unknown). mine: rank 0's in its `steps` steps."""
        found, until = [mine], time.monotonic() + wait_s
        for rank in range(1, self.world):
            if not self._told(self._key(rank)):
                return [], f"the samples of rank {rank} are unknown: it has no mpx.Recorder of this setting. Make one in every process"
            if not self._told(self._end(rank), until - time.monotonic()):
                return [], f"the samples of rank {rank} are unknown: its `with` block did not end within {wait_s:g} s after that of rank 0"
            timed, samples = map(int, self._store.get(self._end(rank)).split())
            if timed != steps:
                return [], f"the samples of rank {rank} are unknown: it timed {timed} steps, and rank 0 {steps}"
            found.append(samples)
        return found, None

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"

    def _end(self, rank: int) -> str:
        return f"{self._key(rank)}/end"

    def _told(self, key: str, wait_s: float = 0) -> bool:
        until = time.monotonic() + wait_s
        while not self._store.check([key]):
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        return True


def _place() -> tuple[int, int]:
    """(rank, number of processes), also before there is a process group where torchrun tells. Tasks of srun may be runs of their own."""
    if dist.is_available() and dist.is_initialized():
        return rank_and_world()
    started = launch(os.environ if "TORCHELASTIC_RUN_ID" in os.environ else {})
    return started.rank, started.world
