"""nn.DataParallel gives each GPU a replica of the model: it computes with weights of its own, and its gradients reach the model's.

Replicas are made here on the CPU, as torch.nn.parallel.replicate makes them; tests/gpu has the same on two GPUs.
"""

import copy

import pytest
import torch
from helpers_for_amp import LEVELS, backward, batch, perceptron
from torch import nn

from mpx.compat import amp


def replicate(model, factor):
    """A replica whose weights are the model's times a factor, as something to tell them by."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, twin in copies.items():
        for name, child in module.named_children():
            setattr(twin, name, copies[child])
        for name, parameter in module._parameters.items():
            setattr(twin, name, None if parameter is None else parameter * factor)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(twin, name, buffer.clone())
    return copies[model]


@pytest.mark.parametrize("level", LEVELS)
def test_replicas_compute_with_their_own_weights(level):
    model, optimizer = perceptron(level, loss_scale=64.0)
    model.eval()
    x, _ = batch()
    doubled = copy.deepcopy(model)
    with torch.no_grad():
        for p in doubled.parameters():
            p.mul_(2)
    replica = replicate(model, 2.0)
    torch.testing.assert_close(replica(x), doubled(x), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(replica(x), model(x), atol=0.1)
    backward(replica(x).sum(), optimizer)
    *_, bias = amp.master_params(optimizer)
    assert bias.grad.tolist() == [32.0] * 3  # 16 rows, and the factor


@pytest.mark.parametrize("level", LEVELS)
def test_replica_of_a_model_around_an_initialised_one(level):
    model, _ = perceptron(level)
    whole = nn.Sequential(model, nn.Tanh()).eval()
    x, _ = batch()
    zeros = replicate(whole, 0.0)
    assert not zeros(x).any()
    assert whole(x).any()


def test_replica_keeps_the_casts():
    model = amp.initialize(nn.Linear(1, 1, bias=False), verbosity=0)
    nn.init.constant_(model.weight, 2.0**-13)
    assert replicate(model, 1.0)(torch.full((1, 1), 2.0**-13)).item() == 0
