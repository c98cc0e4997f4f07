"""Several calls of initialize, several optimizers of one weight, wrapped optimizers, models with FP16
weights.
"""

import math

import pytest
import torch
from helpers_for_amp import LEVELS, Weights, perceptron, snapshot, train_step
from torch import nn

from mpx.compat import amp

X = torch.ones(2)


@pytest.mark.parametrize("level", LEVELS)
def test_add_param_group_of_weights_that_have_gradients(level):
    """The pass before has reached them, but no optimizer had them then, so that their gradients are still
    scaled.
    """
    results = []
    for with_amp in (False, True):
        models = [Weights(1), Weights(2)]
        optimizer = torch.optim.SGD([{"params": list(models[0].parameters()), "lr": 0.25}], momentum=0.125)
        if with_amp:
            models, optimizer = amp.initialize(
                models, optimizer, opt_level=level, verbosity=0, cast_model_type=False, loss_scale=64.0
            )
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
            for model in models:
                model.zero_grad()
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


@pytest.mark.parametrize("level", LEVELS)
def test_parameter_of_two_optimizers_is_unscaled_once(level):
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    model, optimizers = amp.initialize(
        model, optimizers, opt_level=level, verbosity=0, loss_scale=64.0, master_weights=None
    )
    with amp.scale_loss(model(torch.ones(1, 2)).sum(), optimizers) as scaled_loss:
        scaled_loss.backward()
    for optimizer in optimizers:
        assert [p.grad.float().unique().item() for p in amp.master_params(optimizer)] == [1.0, 1.0]
