"""Several models, optimizers and losses. The cases are those of apex's test_multiple_models_optimizers_losses.py and
test_add_param_group.py: FP32 and FP16 weights side by side, an infinite gradient here or there, compared with a run without amp."""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from helpers_for_amp import DYNAMIC, LEVELS, Weights, perceptron, snapshot, train_step
from torch import nn

from mpx.compat import amp

X = torch.ones(2)


@dataclass(frozen=True)
class Case:
    optimizers: tuple[tuple[float, dict[int, float]], ...]  # (momentum, {model: learning rate})
    losses: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # (models added up, optimizers that own them)

    def build(self):
        models = [Weights(1 + i) for i in range(sum(len(rates) for _, rates in self.optimizers))]
        optimizers = [
            torch.optim.SGD([{"params": list(models[i].parameters()), "lr": lr} for i, lr in rates.items()], momentum=momentum)
            for momentum, rates in self.optimizers
        ]
        return models, optimizers

    def loss(self, models, number):
        return sum(models[i](X) for i in self.losses[number][0])


CASES = {
    "2 models, 2 losses, 1 optimizer": Case(((0.125, {0: 0.25, 1: 0.5}),), (((0,), (0,)), ((1,), (0,)))),
    "3 models, 2 losses, 1 optimizer": Case(((0.125, {0: 0.25, 1: 0.5, 2: 0.125}),), (((0, 2), (0,)), ((1, 2), (0,)))),
    "2 models, 2 losses, 2 optimizers": Case(((0.125, {0: 0.25}), (0.25, {1: 0.5})), (((0,), (0,)), ((1,), (1,)))),
    "3 models, 2 losses, 2 optimizers": Case(((0.5, {0: 0.25, 1: 1.0}), (0.25, {2: 0.5})), (((0, 1), (0,)), ((2, 1), (0, 1)))),
}


def zero(how, models, optimizers):
    if how == "none":
        for p in (p for model in models for p in model.parameters()):
            p.grad = None
    for one in models if how == "model" else optimizers if how == "optimizer" else []:
        one.zero_grad()


@cache
def reference(name, iterations, inject):
    """(gradients of each iteration, final weights) without amp; `inject` (iteration, loss) skips the optimizers of that loss."""
    case = CASES[name]
    models, optimizers = case.build()
    gradients = []
    for iteration in range(iterations):
        zero("optimizer", models, optimizers)
        for number in range(2):
            case.loss(models, number).backward()
        gradients.append([p.grad.clone() for optimizer in optimizers for p in amp.master_params(optimizer)])
        skipped = case.losses[inject[1]][1] if inject and iteration == inject[0] else ()
        for i, optimizer in enumerate(optimizers):
            if i not in skipped:
                optimizer.step()
    return gradients, [p.detach() for model in models for p in model.parameters()]


@pytest.mark.parametrize("scalers", [1, 2])
@pytest.mark.parametrize("how_to_zero", ["none", "model", "optimizer"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_against_training_without_amp(name, level, how_to_zero, scalers):
    run_case(name, level, how_to_zero, scalers, inject=None, where=None)
    if level in DYNAMIC:
        for inject in ((iteration, loss) for iteration in (0, 1) for loss in (0, 1)):
            for where in ((model, weight) for model in CASES[name].losses[inject[1]][0] for weight in ("weight0", "weight1")):
                run_case(name, level, how_to_zero, scalers, inject, where)


def run_case(name, level, how_to_zero, scalers, inject, where):
    case, iterations = CASES[name], 3 if inject else 2
    gradients, weights = reference(name, iterations, inject)
    models, optimizers = case.build()
    models, optimizers = amp.initialize(models, optimizers, opt_level=level, verbosity=0, cast_model_type=False, num_losses=scalers)
    for scaler, scale in zip(amp._amp_state.loss_scalers, (4.0, 16.0), strict=False):
        scaler._loss_scale = scale
    for iteration in range(iterations):
        zero(how_to_zero, models, optimizers)
        for number in range(2):
            owners = [optimizers[i] for i in case.losses[number][1]]
            loss_id = number if scalers == 2 else 0
            with amp.scale_loss(case.loss(models, number), owners, loss_id=loss_id) as scaled_loss:
                scaled_loss.backward()
                if inject == (iteration, number):
                    getattr(models[where[0]], where[1]).grad[0] = math.inf
        if inject is None or iteration != inject[0]:
            found = [p.grad for optimizer in optimizers for p in amp.master_params(optimizer)]
            for gradient, expected in zip(found, gradients[iteration], strict=True):
                torch.testing.assert_close(gradient.float(), expected.float())
        for optimizer in optimizers:
            optimizer.step()
    masters = [p for optimizer in optimizers for p in amp.master_params(optimizer)]
    for weight, master, expected in zip((p for model in models for p in model.parameters()), masters, weights, strict=True):
        torch.testing.assert_close(weight.detach(), expected)
        torch.testing.assert_close(weight.detach(), master.detach().to(weight.dtype))


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("zero_before_add", [True, False])
@pytest.mark.parametrize("how_to_zero", ["none", "model", "optimizer"])
@pytest.mark.parametrize("level", LEVELS)
def test_add_param_group(level, how_to_zero, zero_before_add, accumulate):
    results = []
    for with_amp in (False, True):
        models = [Weights(1), Weights(2)]
        optimizer = torch.optim.SGD([{"params": list(models[0].parameters()), "lr": 0.25}], momentum=0.125)
        if with_amp:
            models, optimizer = amp.initialize(models, optimizer, opt_level=level, verbosity=0, cast_model_type=False)
            amp._amp_state.loss_scalers[0]._loss_scale = 4.0

        def backward(loss, optimizer=optimizer, with_amp=with_amp):
            for again in range(2 if accumulate else 1):
                if with_amp:
                    with amp.scale_loss(loss, optimizer) as scaled_loss:
                        scaled_loss.backward(retain_graph=accumulate and not again)
                else:
                    loss.backward(retain_graph=accumulate and not again)

        backward(models[0](X))
        optimizer.step()
        if zero_before_add:
            zero(how_to_zero, models, [optimizer])
        optimizer.add_param_group({"params": list(models[1].parameters()), "lr": 0.5})
        if not zero_before_add:
            zero(how_to_zero, models, [optimizer])
        for _ in range(2):
            backward(models[0](X) + models[1](X))
            optimizer.step()
            zero(how_to_zero, models, [optimizer])
        results.append([p.detach() for model in models for p in model.parameters()])
        if with_amp and level == "O2":
            assert {p.dtype for p in amp.master_params(optimizer)} == {torch.float32}
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("how_to_zero", ["none", "model", "optimizer"])
@pytest.mark.parametrize("level", LEVELS)
def test_add_param_group_of_weights_that_have_gradients(level, how_to_zero):
    """The pass before has reached them, but no optimizer had them then, so that their gradients are still scaled."""
    results = []
    for with_amp in (False, True):
        models = [Weights(1), Weights(2)]
        optimizer = torch.optim.SGD([{"params": list(models[0].parameters()), "lr": 0.25}], momentum=0.125)
        if with_amp:
            models, optimizer = amp.initialize(models, optimizer, opt_level=level, verbosity=0, cast_model_type=False, loss_scale=64.0)
        for step in range(3):
            loss = models[0](X) + models[1](X)
            if with_amp:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
            if step == 0:
                optimizer.add_param_group({"params": list(models[1].parameters()), "lr": 0.5})
            zero(how_to_zero, models, [optimizer])
        results.append([p.detach() for model in models for p in model.parameters()])
    torch.testing.assert_close(*results)


def test_each_initialize_keeps_its_own_scale():
    """Two trainings in one process; amp.state_dict() means the newer."""
    older = perceptron("O2", seed=0)
    newer = perceptron("O1", seed=1)
    train_step(*older, factor=math.inf)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**16, "unskipped": 0}
    train_step(*newer)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**16, "unskipped": 1}
    assert older[1]._amp_stash.session.loss_scalers[0].loss_scale() == 2.0**15
    before = snapshot(*newer)
    train_step(*older)
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(*newer), strict=True))


def test_a_new_optimizer_for_a_model_of_o1():
    model, _ = perceptron("O1")
    model, optimizer = amp.initialize(model, torch.optim.Adam(model.parameters()), opt_level="O1", verbosity=0)
    assert model.forward.inner is None
    assert train_step(model, optimizer) > 0


@pytest.mark.parametrize("level", LEVELS)
def test_parameter_of_two_optimizers_is_unscaled_once(level):
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    model, optimizers = amp.initialize(model, optimizers, opt_level=level, verbosity=0, loss_scale=64.0, master_weights=None)
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizers) as scaled_loss:
        scaled_loss.backward()
    for optimizer in optimizers:
        assert [p.grad.float().unique().item() for p in amp.master_params(optimizer)] == [1.0, 1.0]


class Wrapper:
    """Like apex's LARC: around an optimizer, but no torch.optim.Optimizer, and with methods that take no more than they must."""

    def __init__(self, optimizer):
        self.optim = optimizer

    @property
    def state(self):
        return self.optim.state

    @property
    def param_groups(self):
        return self.optim.param_groups

    def zero_grad(self):
        self.optim.zero_grad()

    def add_param_group(self, param_group):
        self.optim.add_param_group(param_group)

    def step(self):
        self.optim.step()


@pytest.mark.parametrize("level", LEVELS)
def test_wrapped_optimizer(level):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    model, optimizer = amp.initialize(model, Wrapper(torch.optim.SGD(model.parameters(), lr=0.1)), opt_level=level, verbosity=0)
    before = snapshot(model, optimizer)
    train_step(model, optimizer)
    assert not any(torch.equal(a, b) for a, b in zip(before, snapshot(model, optimizer), strict=True))
