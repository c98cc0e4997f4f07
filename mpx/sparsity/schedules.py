"""Restart a module's own learning rate schedules at the pruning, if they can be restarted."""

import math
import warnings
from copy import deepcopy
from typing import Any

import pytorch_lightning as pl
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

MAX_TRIED_STEPS = 20_000  # of a scheduler; a longer schedule goes on

SchedulerState = tuple[dict[str, Any], list[float]]  # a scheduler's state, and its optimizer's learning rates


def schedulers(trainer: pl.Trainer) -> list[Any]:
    return [config.scheduler for config in trainer.lr_scheduler_configs]


def beginnings(trainer: pl.Trainer) -> list[SchedulerState]:
    """The state of each scheduler at the start of the training."""
    return [_state(scheduler) for scheduler in schedulers(trainer)]


def restart_schedulers(trainer: pl.Trainer, first: list[Any], begun: list[SchedulerState], left: float) -> None:
    """Restart each schedule that ends within the `left` steps of the run, as ASP repeats the dense phase's.

    A schedule made for the whole run would be cut off before its end, so it goes on instead. Prints a line for each, with the reason.
    first: the schedulers at the start of the training, each with its state in `begun`. A callback may have replaced them since.
    """
    known = {id(scheduler): beginning for scheduler, beginning in zip(first, begun, strict=True)}
    for config in trainer.lr_scheduler_configs:
        scheduler, name = config.scheduler, type(config.scheduler).__name__
        beginning = known.get(id(scheduler))
        reason = "it began later than the training" if beginning is None else _against(trainer, config, beginning, left)
        if reason is None:
            _set(scheduler, beginning)
        if trainer.is_global_zero:
            print(f"sparsity: the schedule {name} {'starts again' if reason is None else f'goes on: {reason}'}", flush=True)


def _against(trainer: pl.Trainer, config: Any, beginning: SchedulerState, left: float) -> str | None:
    if not trainer.lightning_module.automatic_optimization:
        return "the module steps it itself (manual optimization)"
    if not isinstance(config.scheduler, LRScheduler) or isinstance(config.scheduler, ReduceLROnPlateau):
        return "it depends on more than the number of steps"
    if math.isinf(left) or (config.interval == "epoch" and math.isinf(trainer.num_training_batches)):
        return "how many steps the run or an epoch has is unknown"
    per_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches) if config.interval == "epoch" else 1
    count = int(left) // per_epoch // config.frequency
    tried = 2 * max(count, 1)
    if tried > MAX_TRIED_STEPS:
        return f"it has more than {MAX_TRIED_STEPS:,} steps, too many to try"
    try:
        rates = _tried(config.scheduler, beginning, tried)
    except Exception as error:  # a scheduler may raise anything, above all after its last step
        return f"it cannot be tried ({type(error).__name__})"
    if any(abs(a - b) > 1e-6 * max(beginning[1]) for a, b in zip(rates[count], rates[-1], strict=True)):
        return f"it does not come to its end within the {left} steps that are left"
    return None


def _tried(scheduler: LRScheduler, beginning: SchedulerState, count: int) -> list[list[float]]:
    """The learning rates of `count` steps from the beginning. Scheduler and optimizer are unchanged on return."""
    now, groups = _state(scheduler), scheduler.optimizer.param_groups
    momenta = [{key: group[key] for key in ("momentum", "betas") if key in group} for group in groups]  # OneCycleLR changes these, too
    _set(scheduler, beginning)
    rates = [beginning[1]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warns that the optimizer has not stepped
            for _ in range(count):
                scheduler.step()
                rates.append([float(group["lr"]) for group in groups])
    finally:
        _set(scheduler, now)
        for group, momentum in zip(groups, momenta, strict=True):
            group.update(momentum)
    return rates


def _state(scheduler: Any) -> SchedulerState:
    optimizer = getattr(scheduler, "optimizer", None)
    return deepcopy(scheduler.state_dict()), [float(group["lr"]) for group in optimizer.param_groups] if optimizer is not None else []


def _set(scheduler: LRScheduler, state: SchedulerState) -> None:
    scheduler.load_state_dict(deepcopy(state[0]))
    for group, rate in zip(scheduler.optimizer.param_groups, state[1], strict=True):
        group["lr"] = rate
