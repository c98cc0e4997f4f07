"""Gradients over several passes, clipping, closures, zero_grad and LR schedulers: what training loops do around the three lines."""

import math

import pytest
import torch
from helpers_for_amp import DYNAMIC, LEVELS, backward, batch, perceptron, same, snapshot, train_step
from torch import nn
from torch.nn import functional as F

from mpx.compat import amp


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_accumulation_adds_up(level, delay):
    """Four quarter batches are one batch, with batch norm left out of it."""
    gradients = []
    x, y = batch()
    for parts in (1, 4):
        model, optimizer = perceptron(level)
        model.eval()
        for i, rows in enumerate(torch.arange(16).chunk(parts)):
            loss = F.cross_entropy(model(x[rows]), y[rows]) / parts
            backward(loss, optimizer, delay_unscale=delay and i < parts - 1)
        gradients.append([p.grad.float() for p in amp.master_params(optimizer)])
        optimizer.step()
    assert all(torch.allclose(a, b, rtol=1e-2, atol=1e-3) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_delayed_passes_join_unscaled_ones(level):
    """Unscaled, delayed, unscaled: apex adds the delayed gradients to the unscaled ones as if both were scaled."""
    model, optimizer = perceptron(level, loss_scale=64.0)
    model.eval()
    for delay in (False, True, False):
        backward(model(batch()[0]).sum(), optimizer, delay_unscale=delay)
    *_, bias = amp.master_params(optimizer)
    assert torch.equal(bias.grad.float(), torch.full((3,), 48.0))


@pytest.mark.parametrize(("level", "how"), [("O0", "model"), ("O1", "model"), ("O3", "model"), ("O1", "optimizer"), ("O2", "optimizer")])
def test_zero_grad_clears_what_passes_have_put_aside(level, how):
    """Unscaled, delayed, zero_grad, unscaled: only the last one is left."""
    model, optimizer = perceptron(level, loss_scale=64.0)
    model.eval()
    for delay in (False, True, False):
        backward(model(batch()[0]).sum(), optimizer, delay_unscale=delay)
        if delay:
            (model if how == "model" else optimizer).zero_grad()
    *_, bias = amp.master_params(optimizer)
    assert torch.equal(bias.grad.float(), torch.full((3,), 16.0))


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_that_a_pass_does_not_reach(level):
    """They keep the gradient of the pass before, or have none."""
    models = [nn.Linear(2, 1) for _ in range(3)]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    models, optimizer = amp.initialize(models, optimizer, opt_level=level, verbosity=0, loss_scale=64.0)
    for model in models[:2]:
        backward(model(torch.ones(4, 2)).sum(), optimizer)
    assert [None if p.grad is None else p.grad.unique().item() for p in amp.master_params(optimizer)] == [4.0] * 4 + [None] * 2
    optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_clipping_master_params(level):
    model, optimizer = perceptron(level, loss_scale=64.0)
    x, y = batch()
    backward(100 * F.cross_entropy(model(x), y), optimizer)
    before = torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    after = torch.linalg.vector_norm(torch.cat([p.grad.float().flatten() for p in amp.master_params(optimizer)]))
    assert before > 1
    assert after.item() == pytest.approx(1.0, abs=2e-2)
    optimizer.step()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_sparse_gradients(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0, loss_scale=64.0)
    for _ in range(2):
        backward(model(torch.tensor([1, 1, 3])).sum(), optimizer)
    embedding = next(amp.master_params(optimizer))
    column = model[1].weight.detach().float().sum(0)
    assert torch.allclose(embedding.grad.to_dense(), torch.tensor([0.0, 4, 0, 2, 0])[:, None] * column, atol=5e-3)
    before = embedding.detach().clone()
    optimizer.step()
    assert torch.equal((before != embedding).any(1), torch.tensor([False, True, False, True, False]))


@pytest.mark.parametrize("level", LEVELS)
def test_a_pass_that_fails_leaves_earlier_gradients(level):
    model, optimizer = perceptron(level, loss_scale=64.0)
    backward(model(batch()[0]).sum(), optimizer)
    before = [p.grad.clone() for p in amp.master_params(optimizer)]
    with pytest.raises(MemoryError), amp.scale_loss(model(batch()[0]).sum(), optimizer):
        raise MemoryError
    assert same(before, [p.grad for p in amp.master_params(optimizer)])


@pytest.mark.parametrize("level", LEVELS)
def test_closure_is_evaluated_once(level):
    model, optimizer = perceptron(level)
    x, y = batch()
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (math.inf if calls else 1.0)
        backward(loss, optimizer)
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == calls[0]
    before = snapshot(model, optimizer)
    assert optimizer.step(closure).item() == calls[1]
    assert len(calls) == 2
    assert same(before, snapshot(model, optimizer)) is (level in DYNAMIC)


def test_lbfgs_without_scaling():
    model = nn.Linear(4, 1)
    model, optimizer = amp.initialize(model, torch.optim.LBFGS(model.parameters()), opt_level="O0", verbosity=0)

    def closure():
        optimizer.zero_grad()
        loss = model(batch()[0]).square().mean()
        backward(loss, optimizer)
        return loss

    assert optimizer.step(closure) > optimizer.step(closure)


@pytest.mark.parametrize("set_to_none", [True, False, None])
@pytest.mark.parametrize("level", LEVELS)
def test_zero_grad(level, set_to_none):
    """None: by default PyTorch's optimizers leave no gradient, apex's O2 zeros. A master weight's gradient is gone in any case."""
    model, optimizer = perceptron(level)
    backward(model(batch()[0]).sum(), optimizer)
    optimizer.zero_grad(**({} if set_to_none is None else {"set_to_none": set_to_none}))
    zeros = level == "O2" if set_to_none is None else not set_to_none
    for weight, stepped in zip(model.parameters(), amp.master_params(optimizer), strict=True):
        assert (not weight.grad.any()) if zeros else weight.grad is None
        assert stepped is weight or stepped.grad is None


def test_adam_moves_what_a_pass_of_o2_does_not_reach():
    """As apex has it: an FP32 weight by its momentum, since zero_grad left zeros; an FP16 weight not, whose master has no gradient."""
    model = nn.ModuleDict({"reached": nn.Linear(4, 3), "norm": nn.BatchNorm1d(3), "last": nn.Linear(3, 3)})
    model, optimizer = amp.initialize(model, torch.optim.Adam(model.parameters(), lr=0.1), opt_level="O2", verbosity=0, loss_scale=64.0)
    for reach in (True, False):
        optimizer.zero_grad()
        out = model["reached"](batch()[0].half()).float()
        out = model["last"](model["norm"](out).half()) if reach else out
        backward(out.square().mean(), optimizer)
        before = [p.detach().clone() for p in amp.master_params(optimizer)]
        optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, amp.master_params(optimizer), strict=True)]
    assert moved == [True, True, True, True, False, False]


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
