"""What checkpoints hold, and those of apex."""

import copy

import pytest
import torch
from helpers_for_amp import LEVELS, perceptron, same, snapshot, train_step
from torch import nn

from mpx.compat import amp


@pytest.mark.parametrize("level", LEVELS)
def test_state_dict_loads_into_a_plain_model(level):
    """O2's are the master weights, which the FP16 weights are the rounding of."""
    model, optimizer = perceptron(level)
    for seed in range(3):
        train_step(model, optimizer, seed)
    plain, _ = perceptron("O0", enabled=False)
    plain.load_state_dict(model.state_dict())
    for exact, weight, stepped in zip(
        plain.parameters(), model.parameters(), amp.master_params(optimizer), strict=True
    ):
        assert exact.dtype == torch.float32
        assert torch.equal(exact, stepped.float())
        assert torch.equal(exact.to(weight.dtype), weight)


def test_master_weights_start_unrounded():
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1 / 3)
    model, optimizer = amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O2", verbosity=0
    )
    assert next(amp.master_params(optimizer)).item() == torch.tensor(1 / 3).item()
    assert model.state_dict()["weight"].item() == torch.tensor(1 / 3).item()
    assert model.weight.item() == torch.tensor(1 / 3).half().item()


@pytest.mark.parametrize("level", LEVELS)
def test_resumed_training_is_the_same_bit_for_bit(level):
    trained = perceptron(level)
    for seed in range(2):
        train_step(*trained, seed)
    saved = copy.deepcopy([trained[0].state_dict(), trained[1].state_dict(), amp.state_dict()])
    expected = train_step(*trained, 2), snapshot(*trained)
    resumed = perceptron(level, seed=1)
    for load, state in zip(
        (resumed[0].load_state_dict, resumed[1].load_state_dict, amp.load_state_dict), saved, strict=True
    ):
        load(state)
    assert train_step(*resumed, 2) == expected[0]
    assert same(snapshot(*resumed), expected[1])
