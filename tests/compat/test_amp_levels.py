"""The three lines train at every level, and each level casts what apex's table says."""

from itertools import pairwise

import pytest
import torch
from helpers_for_amp import LEVELS, ConvNet, backward, batch, perceptron, train_step
from torch import nn
from torch.nn import functional as F

from mpx.compat import amp


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "make", [torch.optim.AdamW, torch.optim.RMSprop, lambda p, lr: torch.optim.Adam(p, lr, fused=True)]
)
def test_any_optimizer(level, make):
    torch.manual_seed(0)
    model = ConvNet()
    model, optimizer = amp.initialize(model, make(model.parameters(), lr=3e-3), opt_level=level, verbosity=0)
    x, target = torch.randn(8, 3, 4, 4), torch.randn(8, 6, 4, 4)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        backward(loss, optimizer)
        optimizer.step()
        losses.append(loss.item())
    if level != "O3":  # apex's test leaves it out as well: Adam's epsilon is 0 in FP16
        assert all(b < a for a, b in pairwise(losses)), losses
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32, torch.int64}


@pytest.mark.parametrize(
    ("level", "arguments", "conv", "bn", "master"),
    [
        ("O0", {}, torch.float32, torch.float32, torch.float32),
        ("O1", {}, torch.float32, torch.float32, torch.float32),
        ("O2", {}, torch.float16, torch.float32, torch.float32),
        ("O2", {"keep_batchnorm_fp32": "False"}, torch.float16, torch.float16, torch.float32),
        ("O2", {"master_weights": False}, torch.float16, torch.float32, torch.float16),
        ("O3", {}, torch.float16, torch.float16, torch.float16),
        (
            "O3",
            {"keep_batchnorm_fp32": "True", "loss_scale": "128.0"},
            torch.float16,
            torch.float32,
            torch.float16,
        ),
    ],
)
def test_types_of_weights(level, arguments, conv, bn, master):
    model = ConvNet()
    model, optimizer = amp.initialize(
        model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0, **arguments
    )
    assert (model.conv.weight.dtype, model.bn.weight.dtype, model.bn.running_mean.dtype) == (conv, bn, bn)
    assert next(amp.master_params(optimizer)).dtype == master
    assert model(torch.randn(2, 3, 4, 4)).dtype == torch.float32


@pytest.mark.parametrize("opt_level", ["O1", "O2", "O3"])
def test_products_are_in_fp16(opt_level):
    """Below half of FP16's smallest number a product of FP32 would survive."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0**-13)
    x = torch.full((1, 1), 2.0**-13)
    assert model(x).item() == 2.0**-26
    model = amp.initialize(model, opt_level=opt_level, verbosity=0)
    assert model(x).item() == 0
    assert (
        amp.initialize(nn.Linear(1, 1), opt_level=opt_level, verbosity=0, cast_model_outputs=torch.float64)(
            x
        ).dtype
        == torch.float64
    )


def test_disabled_changes_nothing():
    model, optimizer = perceptron("O2", enabled=False)
    assert "forward" not in vars(model)
    assert "step" not in vars(optimizer)
    loss = model(batch()[0]).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
    assert amp.state_dict() == {}
    with amp.scale_loss(loss, torch.optim.SGD(model.parameters(), lr=1.0)) as scaled_loss:
        assert scaled_loss is loss
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert train_step(model, optimizer) > 0
