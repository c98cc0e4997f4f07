"""What checkpoints hold, and those of apex."""

import copy

import pytest
import torch
from helpers_for_amp import LEVELS, backward, perceptron, same, snapshot, train_step
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
    for exact, weight, stepped in zip(plain.parameters(), model.parameters(), amp.master_params(optimizer), strict=True):
        assert exact.dtype == torch.float32
        assert torch.equal(exact, stepped.float())
        assert torch.equal(exact.to(weight.dtype), weight)


def test_master_weights_start_unrounded():
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1 / 3)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O2", verbosity=0)
    assert next(amp.master_params(optimizer)).item() == torch.tensor(1 / 3).item()
    assert model.state_dict()["weight"].item() == torch.tensor(1 / 3).item()
    assert model.weight.item() == torch.tensor(1 / 3).half().item()


@pytest.mark.parametrize("processes", [1, 2])
def test_weights_changed_after_initialize(monkeypatch, processes):
    """By hand or by DistributedDataParallel, which makes the FP16 weights of all processes equal, not the master weights."""
    monkeypatch.setattr("mpx.compat.amp.optimizers.rank_and_world", lambda: (0, processes))
    model = nn.Linear(1, 2)
    nn.init.constant_(model.weight, 1 / 3)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.0), opt_level="O2", verbosity=0)
    with torch.no_grad():
        model.weight[1] = 0.5
    assert model.state_dict()["weight"].flatten().tolist() == torch.tensor([1 / 3, 0.5]).tolist()
    backward(model(torch.ones(1, 1)).sum(), optimizer)
    first = torch.tensor(1 / 3) if processes == 1 else torch.tensor(1 / 3).half()
    assert next(amp.master_params(optimizer)).flatten().tolist() == [first.item(), 0.5]


def test_state_dict_into_a_given_dict():
    perceptron("O1")
    there = {"epoch": 3}
    assert amp.state_dict(there) is there
    assert there == {"epoch": 3, "loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0}}


def test_apex_checkpoint_of_another_number_of_losses():
    perceptron("O1", num_losses=2)
    with pytest.warns(UserWarning, match=r"amp.load_state_dict: 1 loss scales for num_losses=2"):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 7}})
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 8.0, "unskipped": 7}
    assert amp.state_dict()["loss_scaler1"] == {"loss_scale": 65536.0, "unskipped": 0}
    with pytest.warns(UserWarning, match=r"amp.load_state_dict: 3 loss scales for num_losses=2"):
        amp.load_state_dict({f"loss_scaler{i}": {"loss_scale": 4.0 + i, "unskipped": 0} for i in range(3)})
    assert [scaler.loss_scale() for scaler in amp._amp_state.loss_scalers] == [4.0, 5.0]


def test_count_of_a_fixed_scale_does_not_stop_growth():
    """apex compares for equality with 2000: a count beyond it would never grow the scale again."""
    model, optimizer = perceptron("O1")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 5000}})
    train_step(model, optimizer)
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 16.0, "unskipped": 0}


@pytest.mark.parametrize("level", LEVELS)
def test_resumed_training_is_the_same_bit_for_bit(level):
    trained = perceptron(level)
    for seed in range(2):
        train_step(*trained, seed)
    saved = copy.deepcopy([trained[0].state_dict(), trained[1].state_dict(), amp.state_dict()])
    expected = train_step(*trained, 2), snapshot(*trained)
    resumed = perceptron(level, seed=1)
    for load, state in zip((resumed[0].load_state_dict, resumed[1].load_state_dict, amp.load_state_dict), saved, strict=True):
        load(state)
    assert train_step(*resumed, 2) == expected[0]
    assert same(snapshot(*resumed), expected[1])
