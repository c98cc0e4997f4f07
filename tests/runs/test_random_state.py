"""Which numbers each process of a run draws. tests/training/test_devices.py has runs of two."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mpx.runs.history import RandomState, restore_states, states


@pytest.fixture(autouse=True)
def _restored():
    before = states()
    yield
    restore_states(before)


def draws(rank, *, loaded=None):
    """What a process draws by torch, and by Python and NumPy, once its training starts."""
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    state = RandomState()
    if loaded is not None:
        state.load_state_dict(loaded)
    state.on_train_start(SimpleNamespace(global_rank=rank, world_size=3), nn.Linear(2, 2))
    return torch.rand(4).tolist(), (random.random(), np.random.rand())


def test_each_process_draws_numbers_of_its_own():
    by_rank = [draws(rank) for rank in range(3)]
    assert len({number for numbers, _ in by_rank for number in numbers}) == 3 * 4
    assert len({host for _, host in by_rank}) == 1
    assert draws(2) == by_rank[2]


def test_a_checkpoint_of_another_number_of_processes():
    torch.manual_seed(7)
    one = states()
    by_rank = [draws(rank, loaded=one)[0] for rank in range(3)]
    assert len({number for numbers in by_rank for number in numbers}) == 3 * 4


def test_a_checkpoint_of_as_many_processes():
    found = []
    for seed in (4, 5, 6):
        torch.manual_seed(seed)
        found.append((states(), torch.rand(4).tolist()))
    first, *others = (state for state, _ in found)
    assert [draws(rank, loaded=first | {"others": others})[0] for rank in range(3)] == [
        numbers for _, numbers in found
    ]
