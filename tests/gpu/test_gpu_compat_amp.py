"""On a CUDA device compat.amp runs on real FP16: every level trains, skips, resumes, and multiplies in the
type of its level.
"""

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
    """Convolution, batch norm, LSTM and linear; notes the type in which the LSTM and the linear layer came
    out.
    """

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.lstm, self.fc = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.LSTM(8, 8),
            nn.Linear(8, 4),
        )

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
    x, y = (
        torch.randn(32, 3, 8, 8, generator=generator).cuda(),
        torch.randint(0, 4, (32,), generator=generator).cuda(),
    )
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
    assert {p.dtype for p in amp.master_params(optimizer)} == {
        torch.float16 if level == "O3" else torch.float32
    }
    assert amp._amp_state.loss_scalers[0].scale.scale.is_cuda


@pytest.mark.parametrize("level", LEVELS)
def test_overflow_changes_nothing(level):
    model, optimizer = made(level, loss_scale="dynamic", max_loss_scale=128.0)
    step(model, optimizer)
    before = copy.deepcopy([list(model.parameters()), optimizer.state_dict()["state"]])
    step(model, optimizer, factor=math.inf)
    torch.testing.assert_close(
        [list(model.parameters()), optimizer.state_dict()["state"]], before, rtol=0, atol=0
    )
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 0}}


@pytest.mark.parametrize("level", LEVELS)
def test_resumes(level):
    model, optimizer = made(level)
    for _ in range(3):
        step(model, optimizer)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), amp.state_dict()])
    expected = [step(model, optimizer) for _ in range(3)]
    model, optimizer = made(level)
    for load, state in zip(
        (model.load_state_dict, optimizer.load_state_dict, amp.load_state_dict), saved, strict=True
    ):
        load(state)
    assert [step(model, optimizer) for _ in range(3)] == pytest.approx(expected, rel=1e-3)


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
