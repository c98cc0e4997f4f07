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
        (
            {"opt_level": "O4"},
            "opt_level='O4'): allowed is 'O0', 'O1', 'O2' or 'O3' (the letter O, not the digit 0).",
        ),
        (
            {"opt_level": 1},
            "opt_level=1): allowed is 'O0', 'O1', 'O2' or 'O3' (the letter O, not the digit 0).",
        ),
        (
            {"cast_model_type": torch.bfloat16},
            "cast_model_type=torch.bfloat16): allowed is torch.float16, torch.float32 or False.",
        ),
        (
            {"opt_level": "O1", "cast_model_type": torch.float16},
            "cast_model_type=torch.float16): allowed is torch.float32 or False with O1; O2 and O3 have "
            "FP16 weights.",
        ),
        (
            {"opt_level": "O1", "keep_batchnorm_fp32": True},
            "keep_batchnorm_fp32=True): allowed is nothing with O1, whose weights stay FP32; leave it out "
            "or use O2.",
        ),
        (
            {"opt_level": "O1", "master_weights": True},
            "master_weights=True): allowed is nothing with O1, whose weights stay FP32; leave it out or "
            "use O2.",
        ),
        (
            {"opt_level": "O2", "patch_torch_functions": True},
            "patch_torch_functions=True): allowed is False with O2: casts around operations are what 'O1' "
            "does.",
        ),
        (
            {"opt_level": "O2", "keep_batchnorm_fp32": "yes"},
            "keep_batchnorm_fp32='yes'): allowed is True or False.",
        ),
        ({"loss_scale": "dynmic"}, "loss_scale='dynmic'): allowed is 'dynamic' or a number above 0."),
        ({"loss_scale": 0}, "loss_scale=0): allowed is 'dynamic' or a number above 0."),
        ({"loss_scale": "inf"}, "loss_scale='inf'): allowed is 'dynamic' or a number above 0."),
        ({"num_losses": 0}, "num_losses=0): allowed is a whole number from 1, one loss scale for each."),
        ({"min_loss_scale": -1.0}, "min_loss_scale=-1.0): allowed is a number above 0, or None."),
        ({"models": "resnet"}, "models='resnet'): allowed is a torch.nn.Module or a list of them."),
        ({"optimizers": 3}, "optimizers=3): allowed is a torch.optim.Optimizer or a list of them."),
    ],
)
def test_arguments(arguments, text):
    model = nn.Linear(2, 2)
    with pytest.raises(UserError, match="^" + re.escape(f"amp.initialize({text}") + "$"):
        amp.initialize(**({"models": model, "opt_level": "O2"} | arguments))
    assert model.weight.dtype == torch.float32
    assert amp._amp_state.session is None


def test_half_model():
    with pytest.raises(
        UserError,
        match=r"^amp.initialize: 0.weight is torch.float16 already. Pass the model in FP32, and "
        r"once: amp casts it.$",
    ):
        amp.initialize(nn.Sequential(nn.Linear(2, 2)).half())


def test_optimizer_twice():
    model, optimizer = perceptron("O1")
    with pytest.raises(
        UserError,
        match=r"^amp.initialize: optimizer 0 \(SGD\) was initialised before; "
        r"make a new one.$",
    ):
        amp.initialize(model, optimizer)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: amp.scale_loss(torch.ones(()), []).__enter__(), "amp.scale_loss"),
        (amp.state_dict, "amp.state_dict"),
        (lambda: amp.load_state_dict({}), "amp.load_state_dict"),
        (lambda: amp._amp_state.loss_scalers, "amp._amp_state.loss_scalers"),
        (lambda: amp._amp_state.opt_properties, "amp._amp_state.opt_properties"),
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
        UserError,
        match=r"^amp: optimizer.step\(closure\) is not possible, as in apex; "
        r"[^\n]*$",
    ):
        optimizer.step(lambda: 0)
