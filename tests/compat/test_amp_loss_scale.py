"""Loss scaling as apex does it: its defaults, limits, messages and delayed checks."""

import math

import pytest
import torch
from helpers_for_amp import backward
from torch import nn

from mpx.compat import amp


def scalar(**arguments):
    """One weight under O1, SGD with lr 1: (weight, run); run(g) steps with gradient g and returns the scale
    afterwards.
    """
    model = nn.Linear(1, 1, bias=False)
    model, optimizer = amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=1.0), opt_level="O1", **({"verbosity": 0} | arguments)
    )
    with torch.no_grad():
        model.weight.zero_()

    def run(gradient):
        optimizer.zero_grad()
        backward(model.weight.sum() * gradient, optimizer)
        optimizer.step()
        return amp.state_dict()["loss_scaler0"]["loss_scale"]

    return model.weight, run


def test_grows_after_2000_clean_steps_up_to_2_to_the_24():
    _, run = scalar()
    (scaler,) = amp._amp_state.loss_scalers
    assert [run(1.0) for _ in range(3)] == [2.0**16] * 3
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 1997}})
    assert [run(1.0) for _ in range(4)] == [2.0**16] * 2 + [2.0**17] * 2
    assert scaler.state_dict() == {"loss_scale": 2.0**17, "unskipped": 1}
    for _ in range(20):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": scaler.loss_scale(), "unskipped": 1999}})
        run(1.0)
    assert scaler.state_dict() == {"loss_scale": 2.0**24, "unskipped": 0}


@pytest.mark.parametrize(
    ("limits", "scales"),
    [
        ({"min_loss_scale": 2.0**15}, [2.0**16, 2.0**15, 2.0**15]),
        ({"max_loss_scale": 2.0**10}, [2.0**10, 2.0**9, 2.0**8]),
        ({"min_loss_scale": 2.0**20}, [2.0**20] * 3),
        ({"max_loss_scale": None}, [2.0**16, 2.0**15, 2.0**14]),
        ({"min_loss_scale": 2.0**20, "loss_scale": 4.0}, [4.0] * 3),
    ],
)
def test_limits(limits, scales):
    _, run = scalar(**limits)
    assert [amp._amp_state.loss_scalers[0].loss_scale(), run(math.inf), run(math.inf)] == scales
