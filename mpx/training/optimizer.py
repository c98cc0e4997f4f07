"""The optimizers by their names in conf/optimizer, and the learning rate of each step by those in
conf/schedule.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from mpx.errors import UserError
from mpx.settings.values import as_dict
from mpx.sparsity.recipes import Recipe

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def build_optimizer(model: nn.Module, cfg: DictConfig) -> torch.optim.Optimizer:
    """The optimizer of `cfg`. Only matrices and filters have weight decay; biases and norms, with one
    dimension, have none.

    It is fused: one kernel updates all weights, computes in FP32 whatever their format, and skips an
    overflowed step on the device. The kernel reads weights and state in the order of their memory, so loaded
    state gets the layout of its weights.
    """
    settings = {str(key): value for key, value in cfg.items() if key not in ("name", "lr", "weight_decay")}
    settings["lr"] = float(cfg.lr)  # PyTorch refuses huge integers, and 0 among the betas
    if "betas" in settings:
        settings["betas"] = tuple(map(float, settings["betas"]))
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": float(cfg.weight_decay)},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = OPTIMIZERS[cfg.name](
        [group for group in groups if group["params"]],
        fused=_fused_is_sound(cfg.name, parameters),
        **settings,
    )
    settings_of_groups = [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    optimizer.register_load_state_dict_post_hook(_lay_out_state)
    optimizer.register_load_state_dict_post_hook(lambda loaded: _keep_settings(loaded, settings_of_groups))
    return optimizer


def _fused_is_sound(name: str, parameters: list[nn.Parameter]) -> bool:
    """Whether fused steps update all weights. Before 2.15, PyTorch's fused SGD silently skips most 16-bit
    weights on a CPU (pytorch#191763). Every fused step refuses complex ones.
    """
    if any(p.is_complex() for p in parameters):
        return False
    on_cpu_in_16_bits = any(
        p.device.type == "cpu" and p.dtype in (torch.float16, torch.bfloat16) for p in parameters
    )
    return name != "sgd" or not on_cpu_in_16_bits or TorchVersion(torch.__version__) >= "2.15"


def _keep_settings(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Put this run's settings back, after a checkpoint has brought its own."""
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update(settings)


def _lay_out_state(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the layout of its weights (channels_last or not), which may have changed. A CPU would
    read the numbers in the wrong order, and a GPU would raise.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if (
                isinstance(value, Tensor)
                and value.shape == weight.shape
                and value.stride() != weight.stride()
            ):
                state[name] = torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def mark_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Tell Adam whether a CUDA graph records the next step. Told wrongly, it refuses the recording or warns
    in an ordinary step.

    Called before every step, because a checkpoint brings the value of its own run. A fused Adam
    only checks it.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = group["params"][0].is_cuda and torch.cuda.is_current_stream_capturing()


class Schedule:
    """Learning rates by the number of optimizer steps that were taken, without skipped ones.

    On a GPU, rate and position are tensors on the device, so that the host need not wait to know whether a
    step was skipped. They are written in place, so that a CUDA graph finds them.

    factor: step -> share of the peak learning rate, for steps 0 to `steps`.
    """

    def __init__(self, factor: Callable[[int], float], steps: int):
        self.factors = torch.tensor([factor(step) for step in range(steps + 1)], dtype=torch.float64)
        self.position = torch.zeros((), dtype=torch.int64)
        self.rate = torch.zeros(())

    def to(self, device: torch.device) -> None:
        self.factors, self.position, self.rate = (
            self.factors.to(device),
            self.position.to(device),
            self.rate.to(device),
        )

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate of the next step."""
        at = self.position.clamp(max=len(self.factors) - 1)
        # self.factors[at] would wait for the device
        share = self.factors.index_select(0, at.reshape(1)).reshape(())
        rate = optimizer.defaults["lr"] * share
        for group in optimizer.param_groups:
            group["lr"] = self.rate.copy_(rate) if rate.device.type == "cuda" else rate.item()

    def advance(self, skipped: Tensor | None) -> None:
        """skipped: a bool on the device, whether the newest step was skipped; None: it was not."""
        self.position += 1 if skipped is None else ~skipped

    def start_phase(self, at: int) -> None:
        """Continue at step `at`, even if skipped steps have delayed the schedule."""
        self.position.clamp_(min=at)


def count_steps(trainer: DictConfig, batches: int) -> int:
    """Optimizer steps of the whole run. batches: per epoch of one device's loader.

    Lightning's estimated_stepping_batches would set up the loaders before their state is restored, so that a
    run that was cut off within an epoch would start that epoch again. Raises UserError if no batch is left.
    """
    limit = trainer.limit_train_batches
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    if batches == 0:
        raise UserError(
            f"trainer.limit_train_batches={limit} leaves no batch of an epoch. Give a larger "
            "share, or a number such as 8."
        )
    steps = math.ceil(batches / trainer.accumulate_grad_batches) * trainer.max_epochs
    return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)


def check_limits(trainer: DictConfig, eval_batch_size: int, sizes: dict[str, int], devices: int) -> None:
    """Raise UserError if validation or test would have no batch on some device, for which the others would
    wait. Lightning would find out about the test after training.

    sizes: samples of each split.
    """
    for split, called in (("val", "validation"), ("test", "test")):
        if 0 < sizes[split] < devices:
            raise UserError(
                f"trainer.devices: {devices} devices need a {called} sample each, and there are "
                f"{sizes[split]}. Use fewer devices, or a "
                "larger set."
            )
        limit, there = trainer[f"limit_{split}_batches"], math.ceil(sizes[split] / devices / eval_batch_size)
        if isinstance(limit, float) and int(there * limit) == 0:
            raise UserError(
                f"trainer.limit_{split}_batches={limit:g} leaves none of {there} batches. Give a larger "
                "share, a number such as 1, "
                f"or a smaller data.eval_batch_size than {eval_batch_size}."
            )


def build_schedule(schedule: DictConfig, steps: int, recipe: Recipe | None) -> Schedule:
    """The learning rates of all `steps` of the run. The schedule starts again at the pruning of asp, or at
    `schedule.restart`.

    Raises UserError if these are two steps, or if `schedule.restart` falls on step 0.
    """
    share = schedule.restart
    restart_at = None if share is None else min(round(share * steps), max(steps - 1, 0))
    if restart_at == 0 and steps > 1:  # a run of one step has no other
        raise UserError(
            f"schedule.restart={share:g} is step 0 of {steps}, where the schedule begins "
            "anyway. Raise it, or leave it out."
        )
    if recipe is not None and recipe.restarts_schedule and recipe.plan.start > 0:
        if restart_at not in (None, recipe.plan.start):
            raise UserError(
                f"schedule.restart={share:g} is step {restart_at}, but sparsity.recipe=asp prunes before "
                f"step {recipe.plan.start} and "
                "starts the schedule again there. Leave schedule.restart out, or change sparsity.start."
            )
        restart_at = recipe.plan.start
    return Schedule(lr_factor(schedule, steps, restart_at), steps)


def lr_factor(
    schedule: DictConfig, total_steps: int, restart_at: int | None = None
) -> Callable[[int], float]:
    """step -> share of the peak learning rate.

    restart_at: the step before which the model is pruned, or a dense run starts again. The schedule runs once
    up to it and again after it, as ASP repeats the schedule of the dense phase for the fine-tuning.
    """

    first = _phase(schedule, restart_at or total_steps)
    if not restart_at:
        return first
    second = _phase(schedule, total_steps - restart_at)
    return lambda step: second(step - restart_at) if step >= restart_at else first(step)


def _phase(schedule: DictConfig, length: int) -> Callable[[int], float]:
    """step -> share of the peak, in a phase of `length` steps. Its last share goes on after it."""
    length = max(length, 1)
    settings = SimpleNamespace(**as_dict(schedule))  # read at every step; a DictConfig is slow to read
    warmup = math.ceil(Fraction(str(settings.warmup)) * length)  # in floats, 0.07 * 100 is above 7
    return lambda step: _share(settings, min(step, length), length, warmup)


def _share(settings: SimpleNamespace, step: int, length: int, warmup: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(length - warmup, 1)
    if settings.name == "constant":
        return 1.0
    if settings.name == "step":
        return settings.factor ** sum(step / length >= milestone for milestone in settings.milestones)
    curve = (1 + math.cos(math.pi * progress)) / 2 if settings.name == "cosine" else 1 - progress
    return settings.final + (1 - settings.final) * curve
