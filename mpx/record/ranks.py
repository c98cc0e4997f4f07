"""What the Recorders of one run in several processes tell rank 0, through the store of the process group.

A collective would wait for ever for a process that has no Recorder, or whose loop has ended with an error.
"""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from mpx.errors import UserError
from mpx.measure.environment import host_id
from mpx.system.launch import launch
from mpx.system.processes import rank_and_world

WAIT_S = 60.0  # for the end of the other processes' blocks

_made: Counter[str] = Counter()  # run -> Recorders of it so far, as many in each process


@dataclass(frozen=True)
class Counted:
    """What another process counted in its timed steps."""

    host: str
    steps: int
    samples: int


class Ranks:
    """The processes of one run, from its first step on. run: the same in each: study, setting and seed."""

    def __init__(self, run: str):
        self.rank, self.world = rank_and_world()
        if self.world == 1 and launch(os.environ if "TORCHELASTIC_RUN_ID" in os.environ else {}).world > 1:
            raise UserError(
                "mpx.Recorder: call torch.distributed.init_process_group before the first "
                "step, so that each process is known."
            )
        _made[run] += 1
        self._name = f"mpx.Recorder/{run}/{_made[run]}"
        group = dist.group.WORLD if self.world > 1 else None
        self._store: dist.Store | None = None if group is None else group.get_group_store()

    def tell(self, steps: int, samples: int) -> None:
        """The block ends in this rank above 0."""
        if self._store is not None:
            with suppress(RuntimeError):  # rank 0 has ended, and the store with it
                self._store.set(f"{self._name}/{self.rank}", f"{host_id() or 'unknown'} {steps} {samples}")

    def others(self, wait_s: float) -> list[Counted] | None:
        """What the ranks above 0 have told, in their order; None if one has not within `wait_s`."""
        if self._store is None:
            return []
        keys = [f"{self._name}/{rank}" for rank in range(1, self.world)]
        try:
            self._store.wait(keys, timedelta(seconds=wait_s))
            told = [self._store.get(key).decode().split() for key in keys]
        except RuntimeError:  # of the store's time
            return None
        return [Counted(host, int(steps), int(samples)) for host, steps, samples in told]
