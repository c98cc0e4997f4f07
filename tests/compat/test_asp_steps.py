"""Masks hold at every step: optimizers, closures, overflows, schedulers, moved models."""

import pytest
import torch
from helpers_for_asp import assert_held, perceptron, pruned, train
from torch import nn

from mpx.compat import ASP
from mpx.sparsity.patterns import is_2of4


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


class Adversaries(nn.Module):
    """A generator and a discriminator as one model, trained as in DCGAN."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.discriminator = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))

    def epoch(self, step_generator, step_discriminator):
        fake = self.generator(torch.randn(8, 16))
        self.discriminator(torch.randn(8, 16)).square().mean().backward()
        (-self.discriminator(fake.detach()).square().mean()).backward()
        step_discriminator()
        self.discriminator(fake).square().mean().backward()  # through weights of before that step, and the generator's
        step_generator()

    def optimizers(self):
        return [torch.optim.Adam(part.parameters(), lr=1e-2, weight_decay=0.1) for part in (self.generator, self.discriminator)]


def test_two_optimizers_of_one_model_in_turn(capsys):
    torch.manual_seed(0)
    model = Adversaries()
    generator, discriminator = model.optimizers()
    pruning = pruned(model, generator, verbosity=1)
    for _ in range(2):
        ASP.init_optimizer_for_pruning(discriminator)
    assert len(discriminator._optimizer_step_pre_hooks) == 1
    before = [place.parameter.detach().clone() for place in pruning.places]
    for _ in range(3):
        model.epoch(generator.step, discriminator.step)
    assert all(not torch.equal(place.parameter, old) for place, old in zip(pruning.places, before, strict=True))
    assert_held(pruning)
    assert capsys.readouterr().out == ""


def test_weights_of_no_attached_optimizer_are_zeroed_at_the_steps_of_another(capsys):
    """As apex does. While they do not change, a graph that holds them stays whole."""
    torch.manual_seed(0)
    model = Adversaries()
    generator, discriminator = model.optimizers()
    pruning = pruned(model, discriminator, verbosity=1)
    for _ in range(3):
        model.epoch(lambda: None, discriminator.step)
    line = "Warning: 2 pruned weights, such as generator.0::weight, are in no optimizer given to init_optimizer_for_pruning"
    assert capsys.readouterr().out.count(line) == 1
    generator.step()
    assert not is_2of4(model.generator[0].weight)
    discriminator.step()
    assert all(is_2of4(place.parameter) for place in pruning.places)
    model.generator[0].weight.data.normal_()  # as an optimizer outside of autograd's sight writes
    discriminator.step()
    assert all(is_2of4(place.parameter) for place in pruning.places)
    generator.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model.epoch(generator.step, discriminator.step)


def test_another_optimizers_weights_and_gradients_are_left_alone():
    model = Adversaries()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.generator, model.discriminator))
    pruned(model, first)
    ASP.init_optimizer_for_pruning(second)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    versions = [parameter._version for parameter in model.discriminator.parameters()]
    first.step()
    assert versions == [parameter._version for parameter in model.discriminator.parameters()]
    assert all(parameter.grad.eq(1).all() for parameter in model.discriminator.parameters())


def test_optimizers_stepped_within_the_backward_pass():
    model = perceptron()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in model.parameters()}
    pruning = pruned(model)
    for optimizer in optimizers.values():
        ASP.init_optimizer_for_pruning(optimizer)

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(torch.randn(8, 16)).square().mean().backward()
    assert_held(pruning)


def test_weights_that_come_into_an_attached_optimizer_are_held(capsys):
    model = Adversaries()
    optimizer = torch.optim.Adam(model.generator.parameters(), lr=1e-2)
    pruning = pruned(model, optimizer, verbosity=1)
    optimizer.add_param_group({"params": list(model.discriminator.parameters())})
    for _ in range(3):
        model.discriminator(model.generator(torch.randn(8, 16))).square().mean().backward()
        optimizer.step()
    assert_held(pruning, optimizer)
    assert capsys.readouterr().out == ""


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
