"""Optimizers and learning-rate schedules by the names that conf/optimizer and conf/schedule give them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from mpx.errors import UserError

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def build_optimizer(model: nn.Module, cfg: DictConfig) -> torch.optim.Optimizer:
    """The optimizer of `cfg`, with weight decay on matrices and filters only (biases and norms have one dimension).

    Fused: one kernel for all weights, which computes in FP32 whatever the weights' format, and skips an overflowed step on the device.
    It takes weights and state in the order in which they lie in memory, so state that is loaded is laid out as its weights are.
    """
    settings = {key: value for key, value in cfg.items() if key not in ("name", "lr", "weight_decay")}
    settings["lr"] = float(cfg.lr)  # of a whole number, as it may be typed, a huge one is refused, and a 0 among the betas
    if "betas" in settings:
        settings["betas"] = tuple(map(float, settings["betas"]))
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": float(cfg.weight_decay)},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = OPTIMIZERS[cfg.name]([group for group in groups if group["params"]], fused=True, **settings)
    own = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.register_load_state_dict_post_hook(_lay_out_state)
    optimizer.register_load_state_dict_post_hook(lambda loaded: _keep_settings(loaded, own))
    return optimizer


def _keep_settings(optimizer: torch.optim.Optimizer, own: list[dict[str, Any]]) -> None:
    """A checkpoint brings the settings that it was trained with; those of this run count."""
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def _lay_out_state(optimizer: torch.optim.Optimizer) -> None:
    """Of a run in another layout (channels_last or not) a CPU would otherwise take the numbers of other places, and a GPU refuse it."""
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def say_whether_recorded(optimizer: torch.optim.Optimizer) -> None:
    """Tell Adam whether a CUDA graph records the step that comes next. Told otherwise it refuses that, or warns of an ordinary step.

    Told at every step, since most are ordinary ones and a checkpoint brings what it was told then. A fused one does the same either way.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = group["params"][0].is_cuda and torch.cuda.is_current_stream_capturing()


class Schedule:
    """Learning rates by the number of optimizer steps taken. A step that the loss scaler skipped does not advance it.

    factor: step -> share of the peak learning rate, for steps 0 to `steps`. On a GPU rate and position are tensors there, so that
    nothing waits for the device to know whether a step was skipped, and always the same ones, so that a CUDA graph finds them.
    """

    def __init__(self, factor: Callable[[int], float], steps: int):
        self.factors = torch.tensor([factor(step) for step in range(steps + 1)], dtype=torch.float64)
        self.position = torch.zeros((), dtype=torch.int64)
        self.rate = torch.zeros(())

    def to(self, device: torch.device) -> None:
        self.factors, self.position, self.rate = self.factors.to(device), self.position.to(device), self.rate.to(device)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the rate of the step that comes next."""
        at = self.position.clamp(max=len(self.factors) - 1)
        share = self.factors.index_select(0, at.reshape(1)).reshape(())  # self.factors[at] would wait for the device
        rate = optimizer.defaults["lr"] * share
        for group in optimizer.param_groups:
            group["lr"] = self.rate.copy_(rate) if rate.device.type == "cuda" else rate.item()

    def advance(self, skipped: Tensor | None) -> None:
        """skipped: whether the newest step was left out, a bool on the device; None: it was not."""
        self.position += 1 if skipped is None else ~skipped

    def start_phase(self, at: int) -> None:
        """Continue at step `at`, also if skipped steps have left the schedule behind it."""
        self.position.clamp_(min=at)


def total_steps(cfg: DictConfig, batches: int) -> int:
    """Optimizer steps of a whole run. cfg: the trainer's settings; batches: in an epoch of one device's loader.

    Counted here and not by Lightning's estimated_stepping_batches: asked for while the optimizer is made, that one sets up the
    loaders before their state is restored, and a run that was cut off within an epoch would start that epoch again.
    Raises UserError when no batch is left.
    """
    steps = steps_per_epoch(cfg, batches) * cfg.max_epochs
    return steps if cfg.max_steps == -1 else min(steps, cfg.max_steps)


def steps_per_epoch(cfg: DictConfig, batches: int) -> int:
    """Optimizer steps of an epoch of `batches`, which the trainer's settings `cfg` may cut. Raises UserError when none is left."""
    limit = cfg.limit_train_batches
    batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    if batches == 0:
        raise UserError(f"trainer.limit_train_batches={limit} leaves no batch of an epoch. Give a larger share, or a number such as 8.")
    return math.ceil(batches / cfg.accumulate_grad_batches)


def lr_factor(cfg: DictConfig, total_steps: int, restart_at: int | None = None) -> Callable[[int], float]:
    """step -> share of the peak learning rate.

    restart_at: the step before which the model is pruned; the schedule runs once up to it and once more after it (ASP repeats
    the dense phase's schedule for the fine-tuning).
    """
    bounds = [0, total_steps] if not restart_at else [0, restart_at, total_steps]

    def factor(step: int) -> float:
        phase = 1 if len(bounds) == 3 and step >= restart_at else 0
        length = max(bounds[phase + 1] - bounds[phase], 1)
        return _shape(cfg, min(step - bounds[phase], length), length)

    return factor


def _shape(cfg: DictConfig, step: int, length: int) -> float:
    """Share of the peak at `step` of a phase of `length` steps."""
    warmup = math.ceil(cfg.warmup * length)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(length - warmup, 1)
    if cfg.name == "constant":
        return 1.0
    if cfg.name == "step":
        return cfg.factor ** sum(step / length >= milestone for milestone in cfg.milestones)
    curve = (1 + math.cos(math.pi * progress)) / 2 if cfg.name == "cosine" else 1 - progress
    return cfg.final + (1 - cfg.final) * curve
