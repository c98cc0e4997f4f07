"""When a recipe prunes, in optimizer steps."""

from dataclasses import dataclass

from omegaconf import DictConfig

from mpx.errors import UserError

DENSITY_STEPS = 20  # of `gradual`, unless sparsity.recompute_every says how far apart they are


@dataclass(frozen=True)
class Plan:
    start: int  # the step before whose forward pass the dense phase ends
    end: int  # gradual: the step before which the whole pattern is reached
    every: int | None  # steps from one computation of the masks to the next; None: once


def plan(cfg: DictConfig, total: int, epoch: int) -> Plan:
    """The plan of a run. cfg: its sparsity settings; total: steps of the run; epoch: steps of an epoch.

    At least one step is left after the pruning. Raises UserError for a start or end beyond the run.
    """
    last = max(total - 1, 0)
    start = _start(cfg, total, epoch)
    if cfg.recipe != "gradual":
        return Plan(start, start, cfg.recompute_every)
    end = min(round(cfg.end * total), last)
    if end < start:
        raise UserError(f"sparsity.end={cfg.end:g} is step {end}, before the pruning starts at step {start}. Raise sparsity.end.")
    return Plan(start, end, cfg.recompute_every or max(1, (end - start) // DENSITY_STEPS))


def _start(cfg: DictConfig, total: int, epoch: int) -> int:
    if cfg.recipe == "from_start" or cfg.dense_ckpt is not None:
        return 0
    for key, length in (("start_step", 1), ("start_epoch", epoch)):
        if (value := cfg[key]) is not None:
            if value * length >= total:
                raise UserError(f"sparsity.{key}={value} lies beyond the run, which has {total} steps ({epoch} an epoch). Lower it.")
            return value * length
    return min(round(cfg.start * total), max(total - 1, 0))
