"""On a CUDA device compat.amp runs on real FP16: every level trains, skips, resumes, and multiplies in the type of its level."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mpx.compat import amp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LEVELS = ["O0", "O1", "O2", "O3"]


class Net(nn.Module):
    """Convolution, batch norm, LSTM and linear; notes the type in which the LSTM and the linear layer came out."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.lstm, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LSTM(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x)))
        out, _ = self.lstm(x.flatten(2).permute(2, 0, 1))
        logits = self.fc(out[-1])
        self.seen = (out.dtype, logits.dtype)
        return logits


def made(level, **arguments):
    torch.manual_seed(0)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **arguments)


def step(model, optimizer, factor=1.0):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 3, 8, 8, generator=generator).cuda(), torch.randint(0, 4, (32,), generator=generator).cuda()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y) * factor
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 10.0)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("level", LEVELS)
def test_trains_in_the_type_of_the_level(level):
    model, optimizer = made(level)
    losses = [step(model, optimizer) for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0], losses
    assert model.seen == (torch.float32 if level == "O0" else torch.float16,) * 2
    assert {p.dtype for p in amp.master_params(optimizer)} == {torch.float16 if level == "O3" else torch.float32}
    assert amp._amp_state.loss_scalers[0].scale.scale.is_cuda


@pytest.mark.parametrize("level", LEVELS)
def test_overflow_changes_nothing(level):
    model, optimizer = made(level, loss_scale="dynamic", max_loss_scale=128.0)
    step(model, optimizer)
    before = copy.deepcopy([list(model.parameters()), optimizer.state_dict()["state"]])
    step(model, optimizer, factor=math.inf)
    torch.testing.assert_close([list(model.parameters()), optimizer.state_dict()["state"]], before, rtol=0, atol=0)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 0}}


@pytest.mark.parametrize("level", LEVELS)
def test_resumes(level):
    model, optimizer = made(level)
    for _ in range(3):
        step(model, optimizer)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), amp.state_dict()])
    expected = [step(model, optimizer) for _ in range(3)]
    model, optimizer = made(level)
    for load, state in zip((model.load_state_dict, optimizer.load_state_dict, amp.load_state_dict), saved, strict=True):
        load(state)
    assert [step(model, optimizer) for _ in range(3)] == pytest.approx(expected, rel=1e-3)


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))  # tells the device
        self.exact, self.half = amp.float_function(torch.mm), amp.half_function(torch.mul)

    def forward(self, x):
        return x @ x, self.exact(x, x), self.half(x, x)


def test_functions():
    out = amp.initialize(Calls().cuda(), verbosity=0)(torch.full((1, 1), 2.0**-13, device="cuda"))
    assert [value.item() for value in out] == [0, 2.0**-26, 0]


@pytest.mark.filterwarnings("default")  # the compiler has advice of its own
@pytest.mark.parametrize("level", LEVELS)
def test_compiled(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4, fused=True)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    compiled, x = torch.compile(model), torch.randn(8, 16, device="cuda")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_init_casts_outside_of_models():
    x = torch.full((1, 1), 2.0**-13, device="cuda")
    linear = nn.Linear(4, 4).cuda()
    handle = amp.init()
    try:
        assert (x @ x).item() == 0
        assert linear(torch.ones(1, 4, device="cuda")).dtype == torch.float16
        with torch.no_grad():
            linear.weight.zero_()  # no weight of before is kept
        assert torch.equal(linear(torch.ones(1, 4, device="cuda"))[0], linear.bias.half())
    finally:
        handle._deactivate()
    assert (x @ x).item() == 2.0**-26


@pytest.mark.parametrize("kind", [nn.Linear, nn.LSTM])
def test_half_weights_in_o1(kind, monkeypatch):
    monkeypatch.setattr(amp._amp_state, "allow_incoming_model_not_fp32", True)
    model = kind(4, 4).cuda().half()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O1", verbosity=0)
    out = model(torch.randn(3, 4, device="cuda"))
    out = out[0] if isinstance(out, tuple) else out
    with amp.scale_loss(out.square().mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    assert out.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters()} == {torch.float16}
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_scaling_an_earlier_fp16_gradient_keeps_a_scale_that_fp16_cannot_hold():
    """CUDA casts a scale of 2¹⁶ to FP16, which is infinity, before it multiplies an FP16 tensor by it."""
    model = nn.Linear(4, 2).cuda()
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level="O3", loss_scale="dynamic", verbosity=0)
    x = torch.full((8, 4), 2.0**-12, device="cuda")
    for delay in (False, True, False):
        with amp.scale_loss(model(x).float().sum() * 2.0**-6, optimizer, delay_unscale=delay) as scaled_loss:
            scaled_loss.backward()
    assert amp._amp_state.loss_scalers[0].loss_scale() == 2.0**16
    torch.testing.assert_close(model.weight.grad, torch.full_like(model.weight, 3 * 2.0**-15))
