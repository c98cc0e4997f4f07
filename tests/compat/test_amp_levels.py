"""The three lines train at every level, and each level casts what apex's table says."""

import copy
import pickle
from collections import namedtuple
from itertools import pairwise

import pytest
import torch
from helpers_for_amp import LEVELS, ConvNet, backward, batch, perceptron, train_step
from torch import nn
from torch.nn import functional as F

from mpx.compat import amp


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.RMSprop, lambda p, lr: torch.optim.Adam(p, lr, fused=True)])
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
        ("O3", {"keep_batchnorm_fp32": "True", "loss_scale": "128.0"}, torch.float16, torch.float32, torch.float16),
    ],
)
def test_types_of_weights(level, arguments, conv, bn, master):
    model = ConvNet()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0, **arguments)
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
    assert amp.initialize(nn.Linear(1, 1), opt_level=opt_level, verbosity=0, cast_model_outputs=torch.float64)(x).dtype == torch.float64


Pair = namedtuple("Pair", "left right")


class Batch:
    """Of the user's own making; apex asks such objects for .to(dtype)."""

    def __init__(self, x):
        self.x = x

    def to(self, dtype):
        return Batch(self.x.to(dtype))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, pair, items, *, own, text, number, index):
        self.seen = [pair.left.dtype, items["x"][0].dtype, own.x.dtype, index.dtype, text, number]
        return Pair(pair.left, [{"x": pair.right}, index])


@pytest.mark.parametrize(("level", "seen"), [("O0", torch.float32), ("O1", torch.float32), ("O2", torch.float16), ("O3", torch.float16)])
def test_nested_inputs_and_outputs(level, seen):
    model = amp.initialize(Nested(), opt_level=level, verbosity=0)
    x = torch.ones(2)
    out = model(Pair(x, x), {"x": [x]}, own=Batch(x), text="a", number=1.5, index=torch.tensor([1]))
    assert model.seen == [seen, seen, seen, torch.int64, "a", 1.5]
    assert isinstance(out, Pair)
    assert out.left.dtype == out.right[0]["x"].dtype == torch.float32
    assert out.right[1].dtype == torch.int64


@pytest.mark.parametrize("level", LEVELS)
def test_rnn(level):
    torch.manual_seed(0)
    model = nn.LSTM(3, 5)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0)
    out, (hidden, _) = model(torch.randn(4, 2, 3))
    backward(out.square().mean(), optimizer)
    optimizer.step()
    assert out.dtype == hidden.dtype == torch.float32
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("level", LEVELS)
def test_copies_and_pickles_use_their_own_weights(level):
    model, _ = perceptron(level)
    x, _ = batch()
    before = model.eval()(x)
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    with torch.no_grad():
        model[0].weight.zero_()
    assert not torch.equal(model(x), before)
    assert all(torch.equal(twin(x), before) for twin in twins)


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


def test_lists_come_back_as_lists():
    def model():
        return nn.Linear(2, 2)

    def sgd(*models):
        return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)

    a, b = model(), model()
    assert amp.initialize(a, verbosity=0) is a
    assert amp.initialize([a, b], verbosity=0) == [a, b]
    optimizers = [sgd(a), sgd(b)]
    assert amp.initialize([a, b], optimizers, verbosity=0) == ([a, b], optimizers)
    optimizer = sgd(a, b)
    assert amp.initialize([a, b], optimizer, verbosity=0) == ([a, b], optimizer)


def test_what_is_printed(capsys):
    perceptron("O2", verbosity=1, loss_scale="128.0")
    assert capsys.readouterr().out == (
        "Selected optimization level O2: FP16 weights with FP32 master weights and batch norm\n"
        "cast_model_type=torch.float16, patch_torch_functions=False, keep_batchnorm_fp32=True, master_weights=True, "
        "loss_scale=128.0, enabled=True\n"
    )
    perceptron("O2", verbosity=0)
    assert capsys.readouterr().out == ""
