"""Masks hold at every step: optimizers, closures, overflows, schedulers, moved models."""

import pytest
import torch
from helpers_for_asp import assert_held, perceptron, pruned, train

from mpx.compat import ASP


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    ],
)
def test_held_at_every_step_with_and_without_closure(make, closure):
    model = perceptron()
    optimizer = make(model.parameters())
    train(model, optimizer)  # state from dense training
    pruning = pruned(model, optimizer)
    assert_held(pruning, optimizer)
    train(model, optimizer, closure=closure)
    assert_held(pruning, optimizer)


def test_lbfgs_and_closure_by_keyword():
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    pruning = pruned(model, optimizer)
    x, calls = torch.randn(8, 16), []

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure=closure).item() == calls[0]
    assert len(calls) > 1
    assert_held(pruning)


def test_groups_and_two_optimizers():
    model = perceptron()
    first = torch.optim.AdamW([{"params": [model[0].weight]}, {"params": [model[2].weight], "weight_decay": 0.5}])
    second = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)
    pruning = pruned(model, first)
    ASP.init_optimizer_for_pruning(second)
    ASP.init_optimizer_for_pruning(second)
    assert len(second._optimizer_step_pre_hooks) == 1
    for _ in range(3):
        model(torch.randn(4, 16)).square().sum().backward()
        first.step()
        second.step()
    assert all(not p.parameter[~pruning.masks[p.name]].any() for p in pruning.places)


def test_infinite_and_nan_gradients_where_pruned():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters())
    pruning = pruned(model, optimizer)
    for place in pruning.places:
        mask = pruning.masks[place.name]
        place.parameter.grad = torch.where(mask, 1.0, torch.where(torch.rand(mask.shape) > 0.5, torch.inf, torch.nan))
    optimizer.step()
    assert_held(pruning, optimizer)


def test_grad_scaler_skips_and_steps():
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    pruning = pruned(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 16)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert_held(pruning, optimizer)
    assert scaler.get_scale() == 2.0


def test_scheduler_built_first_does_not_warn():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    pruning = pruned(model, optimizer)
    train(model, optimizer, steps=1)
    scheduler.step()  # warnings are errors
    assert_held(pruning)


def test_moved_model_keeps_its_masks():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruning = pruned(model, optimizer, allow_recompute_mask=True)
    model.to(torch.bfloat16)
    train(model, optimizer)
    assert_held(pruning)
    model.double()
    train(model, optimizer)
    assert_held(pruning)
    ASP.restore_pruned_weights()
    assert model[0].weight.ne(0).all()
