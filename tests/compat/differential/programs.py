"""Random small training programs: models, a level, optimizers, losses, and what is done with them in which order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = {  # level -> overrides that are drawn for it; "dynamic" stands more than once, since most scripts have it
    "O0": {"loss_scale": [None, "dynamic", 128.0]},
    "O1": {"loss_scale": [None, None, None, 128.0, "64.0"]},
    "O2": {
        "loss_scale": [None, None, None, 128.0, 1.0],
        "keep_batchnorm_fp32": [None, None, False],
        "master_weights": [None, None, None, False],
    },
    "O3": {"loss_scale": [None, "dynamic", 128.0], "keep_batchnorm_fp32": [None, "True"]},
}


class Dropped(nn.Module):
    """Two branches, of which a pass may leave one out, so that its parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(4, 6)
        self.last = nn.Linear(6, 2)
        self.dropout, self.whole = nn.Dropout(0.25), True

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        return self.last(self.dropout(out + self.norm(self.second(x)) if self.whole else out))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)
    )


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    return model


MODELS = {"dense": dense, "convolution": convolution, "dropped": Dropped, "frozen": frozen}
OPTIMIZERS = {  # a large epsilon: FP16 has no small one, and rounding noise is not blown up to whole steps
    "sgd": (torch.optim.SGD, {"lr": 0.125}),
    "momentum": (torch.optim.SGD, {"lr": 0.125, "momentum": 0.875, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.0625, "momentum": 0.5, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.03125, "eps": 1e-3}),
    "adamw": (torch.optim.AdamW, {"lr": 0.03125, "eps": 1e-3}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.03125, "eps": 1e-3}),
}


def inputs(model: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(model))


@dataclass(frozen=True)
class Pass:
    """One backward pass: the loss of these models, for these optimizers."""

    loss_id: int
    models: tuple[int, ...]
    optimizers: tuple[int, ...]
    factor: float = 1.0
    delay: bool = False  # delay_unscale
    poisoned: int | None = None  # that parameter of the first model gets an infinite gradient
    whole: bool = True  # see Dropped

    def victim(self, models: list[nn.Module]) -> nn.Parameter | None:
        """The weight whose gradient is to become infinite."""
        parameters = list(models[self.models[0]].parameters())
        return None if self.poisoned is None else parameters[self.poisoned % len(parameters)]

    def loss(self, models: list[nn.Module], forward: Callable[[int, Tensor], Tensor]) -> Tensor:
        """forward: (number of a model, its input) -> its output."""
        torch.manual_seed(7)  # of dropout
        total = 0.0
        for number in self.models:
            models[number].whole = self.whole
            out = forward(number, inputs(number))
            total = total + F.mse_loss(out, inputs(number)[:, :2].sin().to(out.device))
        return total * self.factor


@dataclass(frozen=True)
class Step:
    optimizer: int
    closure: Pass | None = None


@dataclass(frozen=True)
class Zero:
    """how: "optimizer" or "model" (its zero_grad), or "none" (gradients set to None by hand). number: of the optimizer or model."""

    how: str
    number: int
    set_to_none: bool | None = None


@dataclass(frozen=True)
class Clip:
    optimizer: int


@dataclass(frozen=True)
class Add:
    """add_param_group with the parameters of a model that no optimizer has had so far."""

    optimizer: int
    model: int


@dataclass(frozen=True)
class Rescale:
    """loss_scaler._loss_scale, set by hand."""

    loss_id: int
    scale: float


@dataclass(frozen=True)
class Checkpoint:
    """Everything is saved, made again and loaded. initialize_first: before loading."""

    initialize_first: bool


@dataclass(frozen=True)
class Evaluate:
    model: int

    @torch.no_grad()
    def output(self, models: list[nn.Module], forward: Callable[[int, Tensor], Tensor]) -> Tensor:
        model = models[self.model].eval()
        model.whole = True
        out = forward(self.model, inputs(self.model))
        model.train()
        return out


@dataclass(frozen=True)
class Program:
    seed: int
    level: str
    overrides: dict[str, Any]
    models: tuple[str, ...]
    optimizers: tuple[tuple[str, tuple[int, ...]], ...]  # (kind, models)
    num_losses: int
    interval: int  # clean passes after which a scale grows
    limits: tuple[float | None, float | None]
    events: tuple[Any, ...] = field(default=(), repr=False)

    def model(self, number: int, seed: int | None = None) -> nn.Module:
        torch.manual_seed(1000 * (self.seed if seed is None else seed) + number)
        return MODELS[self.models[number]]()

    def optimizer(self, number: int, parameters: list[Any]) -> torch.optim.Optimizer:
        kind, arguments = OPTIMIZERS[self.optimizers[number][0]]
        return kind(parameters, **arguments)
