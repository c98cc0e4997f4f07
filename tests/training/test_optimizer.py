"""Schedules against their formulas, and which parameters decay."""

import math

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from mpx.training.optimizer import build_optimizer, lr_factor


def schedule(name, **kwargs):
    return OmegaConf.create(
        {"name": name, "warmup": 0.0, "final": 0.0, "milestones": [0.5, 0.75], "factor": 0.1} | kwargs
    )


def test_cosine_with_warmup():
    factor = lr_factor(schedule("cosine", warmup=0.1), 100)
    assert [factor(step) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert factor(55) == pytest.approx((1 + math.cos(math.pi * 45 / 90)) / 2)
    assert factor(100) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("share", "length", "warm"), [(0.07, 100, 7), (0.14, 50, 7), (0.55, 200, 110), (0.072, 100, 8), (0, 9, 0)]
)
def test_a_warmup_is_as_long_as_its_share_says(share, length, warm):
    """In floats, 0.07 * 100 is above 7."""
    factor = lr_factor(schedule("constant", warmup=share), length)
    assert [factor(step) for step in range(length)] == [(step + 1) / warm for step in range(warm)] + [1.0] * (
        length - warm
    )


def test_step_and_constant():
    factor = lr_factor(schedule("step"), 8)
    assert [factor(step) for step in (0, 3, 4, 5, 6, 7)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert lr_factor(schedule("constant", warmup=0.5), 4)(3) == 1.0


def test_schedule_restarts_at_the_pruning():
    factor, half = (
        lr_factor(schedule("cosine", warmup=0.1), 200, restart_at=100),
        lr_factor(schedule("cosine", warmup=0.1), 100),
    )
    assert [factor(step) for step in range(200)] == pytest.approx([half(step % 100) for step in range(200)])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_biases_and_norms_do_not_decay(name):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 5))
    cfg = {"name": name, "lr": 0.1, "weight_decay": 0.5} | (
        {"betas": [0.9, 0.99]} if name == "adamw" else {"momentum": 0.9}
    )
    decayed, spared = build_optimizer(model, OmegaConf.create(cfg)).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[2].weight)}
    assert len(spared["params"]) == 4


def test_a_checkpoint_does_not_bring_back_the_settings_that_it_was_trained_with():
    first, second = (
        build_optimizer(
            nn.Linear(4, 4),
            OmegaConf.create({"name": "sgd", "lr": 0.1, "momentum": momentum, "weight_decay": decay}),
        )
        for momentum, decay in ((0.9, 0.5), (0.8, 0.1))
    )
    second.load_state_dict(first.state_dict())
    assert [(group["momentum"], group["weight_decay"]) for group in second.param_groups] == [
        (0.8, 0.1),
        (0.8, 0.0),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sgd_updates_every_16_bit_weight(dtype):
    """Fused SGD of PyTorch 2.11 skips most of them on a CPU (pytorch#191763)."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 4).to(dtype))
    expected, momentum = weight.detach().double(), torch.zeros(64, 4, dtype=torch.float64)
    cfg = {"name": "sgd", "lr": 0.125, "weight_decay": 0, "momentum": 0.5, "nesterov": False}
    optimizer = build_optimizer(nn.ParameterList([weight]), OmegaConf.create(cfg))
    for _ in range(3):
        weight.grad = torch.randn(64, 4).to(dtype)
        momentum = 0.5 * momentum + weight.grad.double()
        expected = expected - 0.125 * momentum
        optimizer.step()
    torch.testing.assert_close(weight.detach().double(), expected, rtol=0.05, atol=0.05)
