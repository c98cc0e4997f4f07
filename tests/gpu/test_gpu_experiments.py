"""experiments/speed: the loop by hand takes the same steps recorded as it takes without a graph, in each
format.
"""

import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SPEED = Path(__file__).parents[2] / "experiments" / "speed"


@pytest.fixture
def hand(monkeypatch):
    monkeypatch.syspath_prepend(SPEED)
    import hand

    yield hand
    for name in ("hand", "setups"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("model", "precision", "tolerance"),
    [
        ("resnet18", "fp32", 1e-3),
        ("resnet18", "amp", 5e-2),
        ("bert_small", "fp32", 1e-4),
        ("lstm", "fp32", 1e-4),
    ],
)
def test_a_recorded_step_trains_as_an_ordinary_one(hand, model, precision, tolerance):
    from setups import setup

    here = setup(model, precision, tiny=True)
    batch = hand.batches(here, channels_last=True)[0]
    found = []
    for graph in (False, True):
        torch.manual_seed(0)
        network, train_on = hand.training(here, tuned=True, compiled=False, look_up=False)
        without_dropout(network)
        with hand.searching(here):
            step = hand.recorded(train_on, batch) if graph else train_on
            found.append([step(*batch).item() for _ in range(8 if graph else 8 + hand.BEFORE_RECORDING)][-8:])
    plain, recorded = found
    assert recorded == pytest.approx(plain, rel=tolerance, abs=tolerance)
    assert len(set(recorded)) == 8, "the weights stand still"


def without_dropout(network):
    """Its random numbers differ in a graph."""
    for part in network.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
