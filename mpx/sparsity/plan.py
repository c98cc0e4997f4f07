"""The steps at which a recipe prunes, counted in optimizer steps, with those that the loss scaler skips."""

from dataclasses import dataclass

from omegaconf import DictConfig

from mpx.errors import UserError
from mpx.printing import how_many

DENSITY_STEPS = 20  # `gradual` lowers the density this many times, unless sparsity.recompute_every sets the interval


@dataclass(frozen=True)
class Plan:
    start: int  # the dense phase ends before this step's forward pass
    end: int  # gradual pruning reaches the full pattern before this step's forward pass
    every: int | None  # steps between two computations of the masks; None: computed once


def plan(sparsity: DictConfig, total: int, epoch: int) -> Plan:
    """The plan of a run. total: steps of the run; epoch: steps per epoch.

    At least one step follows the pruning. Raises UserError for a start or end beyond the run.
    """
    last = max(total - 1, 0)
    start = _start(sparsity, total, epoch)
    if sparsity.recipe != "gradual":
        return Plan(start, start, sparsity.recompute_every)
    end = min(round(sparsity.end * total), last)
    if end < start:
        raise UserError(f"sparsity.end={sparsity.end:g} is step {end}, before the pruning starts at step {start}. Raise sparsity.end.")
    return Plan(start, end, sparsity.recompute_every or max(1, (end - start) // DENSITY_STEPS))


def _start(sparsity: DictConfig, total: int, epoch: int) -> int:
    if sparsity.recipe == "from_start" or sparsity.dense_ckpt is not None:
        return 0
    for key, length in (("start_step", 1), ("start_epoch", epoch)):
        if (value := getattr(sparsity, key)) is not None:
            if value * length >= total:
                raise UserError(
                    f"sparsity.{key}={value} lies beyond the run, which has {how_many(total, 'step')} ({epoch} an epoch). Lower it."
                )
            return value * length
    return min(round(sparsity.start * total), max(total - 1, 0))
