"""Every mistake comes back as one line that names the argument, what it was and what is allowed; nothing has
been changed then.
"""

import re

import pytest
import torch
from helpers_for_amp import perceptron
from torch import nn

from mpx.compat import amp
from mpx.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"opt_level": "O4"}, "'O4'): allowed is 'O0', 'O1', 'O2' or 'O3' (the letter O, not the digit 0)."),
        ({"cast_model_type": torch.bfloat16}, "torch.bfloat16): allowed is torch.float16, torch.float32 or"),
        (
            {"cast_model_type": torch.float16, "opt_level": "O1"},
            "torch.float16): allowed is torch.float32 or",
        ),
        (
            {"keep_batchnorm_fp32": True, "opt_level": "O1"},
            "True): allowed is nothing with O1, whose weights",
        ),
        (
            {"patch_torch_functions": True},
            "True): allowed is False with O2: casts around operations are what",
        ),
        ({"keep_batchnorm_fp32": "yes"}, "'yes'): allowed is True or False."),
        ({"loss_scale": "dynmic"}, "'dynmic'): allowed is 'dynamic' or a number above 0."),
        ({"loss_scale": 0}, "0): allowed is 'dynamic' or a number above 0."),
        ({"num_losses": 0}, "0): allowed is a whole number from 1, one loss scale for each."),
        ({"min_loss_scale": -1.0}, "-1.0): allowed is a number above 0, or None."),
        ({"models": "resnet"}, "'resnet'): allowed is a torch.nn.Module or a list of them."),
        ({"optimizers": 3}, "3): allowed is a torch.optim.Optimizer or a list of them."),
    ],
)
def test_arguments(arguments, text):
    model, name = nn.Linear(2, 2), next(iter(arguments))
    with pytest.raises(UserError, match="^" + re.escape(f"amp.initialize({name}={text}")):
        amp.initialize(**({"models": model, "opt_level": "O2"} | arguments))
    assert model.weight.dtype == torch.float32
    assert amp._amp_state.session is None


def test_half_model():
    with pytest.raises(
        UserError, match=r"^amp.initialize: 0.weight is torch.float16 already. Pass the model"
    ):
        amp.initialize(nn.Sequential(nn.Linear(2, 2)).half())


def test_optimizer_twice():
    model, optimizer = perceptron("O1")
    with pytest.raises(UserError, match=r"^amp.initialize: optimizer 0 \(SGD\) was initialised before; make"):
        amp.initialize(model, optimizer)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: amp.scale_loss(torch.ones(()), []).__enter__(), "amp.scale_loss"),
        (amp.state_dict, "amp.state_dict"),
        (lambda: amp._amp_state.loss_scalers, "amp._amp_state.loss_scalers"),
    ],
)
def test_before_initialize(call, name):
    text = f"{name} before amp.initialize: call model, optimizer = amp.initialize(model, optimizer) first."
    with pytest.raises(UserError, match="^" + re.escape(text) + "$"):
        call()


def test_a_step_with_a_closure():
    model = nn.Linear(2, 2)
    model, optimizer = amp.initialize(model, torch.optim.LBFGS(model.parameters()), verbosity=0)
    with pytest.raises(
        UserError, match=r"^amp: optimizer.step\(closure\) is not possible, as in apex; [^\n]*$"
    ):
        optimizer.step(lambda: 0)
