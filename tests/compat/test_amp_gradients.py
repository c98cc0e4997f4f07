"""Accumulated and sparse gradients, passes that fail, LBFGS and LR schedulers."""

import math

import pytest
import torch
from helpers_for_amp import DYNAMIC, LEVELS, backward, batch, perceptron, same, snapshot, train_step
from torch import nn

from mpx.compat import amp


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_sparse_gradients(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    model, optimizer = amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0, loss_scale=64.0
    )
    for _ in range(2):
        backward(model(torch.tensor([1, 1, 3])).sum(), optimizer)
    embedding = next(amp.master_params(optimizer))
    column = model[1].weight.detach().float().sum(0)
    assert torch.allclose(
        embedding.grad.to_dense(), torch.tensor([0.0, 4, 0, 2, 0])[:, None] * column, atol=5e-3
    )
    before = embedding.detach().clone()
    optimizer.step()
    assert torch.equal((before != embedding).any(1), torch.tensor([False, True, False, True, False]))


@pytest.mark.filterwarnings("error")  # of an LR scheduler that thinks the optimizer was passed over
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_lr_scheduler_built_before_or_after(level, before):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    if before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    if not before:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in range(3):
        train_step(model, optimizer, factor=math.inf if step == 0 and level in DYNAMIC else 1.0)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert torch.isfinite(model.weight).all()


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_accumulated_gradients_are_those_of_the_whole_batch(level, delay):
    """Also where the scale has changed between the passes, and where an earlier pass has left its gradients
    unscaled.
    """
    results = []
    for passes in (1, 2):
        model, optimizer = perceptron(level, loss_scale="dynamic", max_loss_scale=128.0)
        x, _ = batch()
        for _ in range(2):
            optimizer.zero_grad()
            for part in range(passes):
                backward(
                    model.eval()(x).square().sum() / passes,
                    optimizer,
                    delay_unscale=delay and part == 0 and passes == 2,
                )
            optimizer.step()
        results.append([p.detach().float() for p in amp.master_params(optimizer)])
    torch.testing.assert_close(*results, rtol=2e-3, atol=2e-4)


def test_an_overflow_of_one_loss_leaves_the_scale_of_another():
    model, optimizer = perceptron("O1", num_losses=2, max_loss_scale=128.0)
    before = snapshot(model, optimizer)
    backward(model.eval()(batch()[0]).sum() * math.inf, optimizer, loss_id=0)
    backward(model(batch()[0]).sum(), optimizer, loss_id=1)
    optimizer.step()
    assert [scaler.loss_scale() for scaler in amp._amp_state.loss_scalers] == [64.0, 128.0]
    assert same(before, snapshot(model, optimizer))
